"""The curves of several runs, to draw over each other."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mptui.runs.store import journal
from mptui.runs.store.index import read_run
from mptui.runs.view.history import History
from mptui.runs.view.labels import LOSS, TRAIN, VALIDATION
from mptui.runs.view.run_view import RunView

MOST = 8
"""Largest number of runs that are drawn over each other."""

Curve = tuple[str, str]
"""A chart and a label in it, as `RunView.histories` has them."""


class RunCurves:
    """Views of runs, read again only after their journals have grown. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, RunView]] = {}

    def read(self, runs: Sequence[Path]) -> dict[Path, RunView]:
        """Return the view of each run that has a readable journal."""
        known, self._known = self._known, {}
        for run in runs:
            try:
                size = os.stat(run / journal.NAME).st_size  # noqa: PTH116 - as the journal's writer does
                before = known.get(run)
                self._known[run] = (
                    before if before is not None and before[0] == size else (size, read_run(run))
                )
            except OSError:
                continue
        return {run: view for run, (_, view) in self._known.items()}


def curves_of(views: Sequence[RunView]) -> list[Curve]:
    """Return the curves that any of the views has: losses first, then metrics of the validation."""
    found = {
        (chart, label): None
        for view in views
        for chart, histories in view.histories.items()
        for label, history in histories.items()
        if history.version
    }

    def place(curve: Curve) -> tuple[bool, bool]:
        chart, label = curve
        return chart != LOSS, not label.endswith((TRAIN, VALIDATION))

    return sorted(found, key=place)


def histories_of(views: Mapping[Path, RunView], curve: Curve) -> dict[Path, History]:
    """Return this curve of each run that has it."""
    chart, label = curve
    found = {run: view.histories.get(chart, {}).get(label) for run, view in views.items()}
    return {run: history for run, history in found.items() if history is not None and history.version}
