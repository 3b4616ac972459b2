"""The parent of a fork, for the live screen of the fork: its curves, and what differs."""

from dataclasses import dataclass, field
from pathlib import Path

from mptui.runs.listing.difference import STEPS, difference
from mptui.runs.listing.forking import forked_from, parent_of
from mptui.runs.listing.run_curves import RunCurves
from mptui.runs.store.directory import read_summary
from mptui.runs.view.history import History
from mptui.runs.view.labels import DEVICE, MEMORY
from mptui.runs.view.run_view import RunView

Curves = dict[str, dict[str, History]]
"""Histories by chart and label, as `RunView.histories` has them."""


@dataclass(frozen=True, slots=True)
class ForkParent:
    """The parent of a fork as it is now.

    Attributes:
        step: The step of the fork.
        name: Its present name; "": it is gone.
        view: Its view; None: it has no readable journal.
        curves: Its curves from the step of the fork on; those of the device are left out.
    """

    step: int
    name: str = ""
    view: RunView | None = None
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForkWords:
    """What a fork says of its parent: in full, abbreviated, and whether it is a comparison."""

    long: str
    short: str
    compares: bool = False


class ParentReader:
    """Reads the parent of a fork, again only after its journal has grown. Not thread-safe."""

    def __init__(self) -> None:
        self._runs = RunCurves()
        self._last: ForkParent | None = None

    def read(self, fork: Path) -> ForkParent | None:
        """Return the parent of the run in a directory; None if it is no fork."""
        summary = read_summary(fork)
        forked, parent = forked_from(summary), parent_of(fork, summary)
        if forked is None:
            return None
        if parent is None:
            return ForkParent(forked[1])
        path, step = parent
        view = self._runs.read([path]).get(path)
        if self._last is None or self._last.view is not view or self._last.name != path.name:
            self._last = ForkParent(step, path.name, view, {} if view is None else _curves(view, step))
        return self._last


def fork_words(parent: ForkParent, fork: RunView) -> ForkWords:
    """Compare a fork with its parent, or say why not."""
    if not parent.name:
        return ForkWords("its parent is gone", "parent gone")
    if parent.view is None:
        return ForkWords("its parent has no journal", "no journal")
    if fork.step < parent.step + STEPS:
        words = f"compares from step {parent.step + STEPS:,}"
        return ForkWords(words, words)
    found = difference(parent.view, fork, parent.step)
    if not found.title:
        return ForkWords("too few values to compare", "too few values")
    return ForkWords(found.title, found.short, compares=True)


def _curves(view: RunView, step: int) -> Curves:
    return {
        chart: {label: history.since(step) for label, history in histories.items() if history.end_x > step}
        for chart, histories in view.histories.items()
        if chart not in {DEVICE, MEMORY}
    }
