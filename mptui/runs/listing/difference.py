"""A run and its fork, and several runs, beside each other: curves, and which steps are faster."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mptui import text as fmt
from mptui.config.keys import said
from mptui.runs.listing.forks import forked_from, parent_of
from mptui.runs.listing.rows import CHANGES, cause_words, compare_setups, setting_words, what_differs
from mptui.runs.store import journal
from mptui.runs.store.directory import CONFIG, ENVIRONMENT, read_summary
from mptui.runs.view.history import CAPACITY, Floats, History
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import DEVICE, LOSS, MEMORY, TRAIN, VALIDATION
from mptui.text import clean

# The difference between a run and its fork: whose steps are faster, whose loss is lower, and by how much
# -------------------------------------------------------------------------------------------------------
# Nothing is claimed before there are `STEPS` steps with `VALUES` values of both. Speeds are even if their
# middle halves overlap, losses if zero is among the middle 80 % of their differences.

STEPS = 20
"""Steps from the fork on before anything is claimed."""

VALUES = 8
"""Values to compare before anything is claimed: a fast run reports many steps as one value."""

_PLACES = 64
"""Largest number of places at which two curves are compared, whatever their length."""


@dataclass(frozen=True, slots=True)
class ForkDifference:
    """How a fork differs from its parent.

    Attributes:
        names: Fork and parent, by the one thing that differs: `bf16` and `fp32`, `batch_size 64` and `8`;
            "fork" and "its parent" if more does, or nothing.
        ratio: Images a second of the fork, divided by those of its parent; 1: even; None: not known.
        loss: Its training loss less that of its parent at equal steps; 0: even; None: not known.
        step: The last step that both have.
        differing: All that differs between them (`mptui.runs.listing.rows.what_differs`).
    """

    names: tuple[str, str]
    ratio: float | None
    loss: float | None
    step: float
    differing: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """All that is known: `bf16 is 1.9x ahead of fp32, loss +0.002 at step 3,120`; "" if nothing is."""
        words = self._words(f" of {self.names[1]}", f" with {self.names[1]}")
        step = f" at step {fmt.count(self.step)}" if self.loss is not None else ""
        return f"{words}{step}; {cause_words(self.differing)}" if words else ""

    @property
    def title(self) -> str:
        """The same for a line with other things: `bf16 is 1.9x ahead, loss +0.002`."""
        return self._counted(self._words("", ""))

    def within(self, width: int) -> str:
        """The sentence in at most `width` cells: with the number of things that differ, or without it."""
        clause = self._counted(self.sentence.partition("; ")[0])
        return next((words for words in (self.sentence, clause) if len(words) <= width), self.title)

    @property
    def short(self) -> str:
        """The same for a narrow line: `1.9x ahead, loss +0.002`."""
        return ", ".join(word for word in (self._speed("", ""), self._loss()) if word)

    def _counted(self, words: str) -> str:
        count = len(self.differing)
        return f"{words}, {count} things differ" if words and count > 1 else words

    def _words(self, of: str, beside: str) -> str:
        words = ", ".join(word for word in (self._speed(of, beside), self._loss()) if word)
        joined = " is " if self.ratio not in {None, 1.0} else ": "
        return f"{self.names[0]}{joined}{words}" if words else ""

    def _speed(self, of: str, beside: str) -> str:
        if self.ratio is None:
            return ""
        if self.ratio == 1:
            return f"speed even{beside}"
        far = max(self.ratio, 1 / self.ratio)
        times = f"{far:.1f}x" if far >= 1.1 else f"{far:.2f}x"
        return f"{times} ahead{of}" if self.ratio > 1 else f"{times} behind{of.removeprefix(' of')}"

    def _loss(self) -> str:
        if self.loss is None:
            return ""
        return f"loss {self.loss:+.2g}" if self.loss else "loss even"


def difference(
    parent: RunView, fork: RunView, since: int, differing: Mapping[str, Sequence[object]]
) -> ForkDifference:
    """Compare a fork with its parent from the step of the fork on.

    Args:
        parent: The parent.
        fork: The fork.
        since: The step of the fork.
        differing: What differs between their settings, versions and devices, of the parent first.
    """
    began = [*fork.branches, fork.branch()][0].began
    changes = {_since_then(view, since, began) for view in (parent, fork)}
    things = dict(differing) | ({CHANGES: ("", "")} if len(changes) > 1 else {})
    speeds, losses = (
        (parent.histories.get(chart, {}).get(label), fork.histories.get(chart, {}).get(label))
        for chart, label in (("speed", "images/s"), (LOSS, TRAIN))
    )
    step = min((each.end_x for each in losses if each is not None), default=0.0)
    names = _names(parent, fork, things)
    return ForkDifference(names, _ratio(*speeds, since), _gap(*losses, since), step, tuple(things))


def _since_then(view: RunView, step: int, time: float) -> tuple[str, ...]:
    """Return what a run has changed after a step, and the steps to which it has gone back after a time."""
    marks = [f"{mark.label} at step {mark.step}" for mark in view.marks if mark.step > step]
    branches = [*view.branches, view.branch()]
    return (*marks, *(f"back to step {branch.start}" for branch in branches if branch.began > time))


def _names(parent: RunView, fork: RunView, things: Mapping[str, Sequence[object]]) -> tuple[str, str]:
    """Name fork and parent by the one thing that differs; by what they are if there are more."""
    same_mode = "precision.mode" in things and parent.precision == fork.precision
    if len(things) != 1 or CHANGES in things or same_mode:
        return "fork", "its parent"
    ((key, (had, has)),) = things.items()
    if key == "precision.mode":
        return fork.precision, parent.precision
    values = [clean(said(value), 16) for value in (has, had)]
    return f"{clean(setting_words(key), 24)} {values[0]}", values[1]


def _ratio(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare speeds over the steps that both have trained, else with those of the parent before the fork."""
    if parent is None or fork is None:
        return None
    if fork.end_x - since < STEPS:
        return None
    end = min(parent.end_x, fork.end_x)
    mine, its = (_values(each, since + 1, end) for each in (fork, parent))
    if min(mine.size, its.size) < VALUES:
        mine = _values(fork, since + 1, fork.end_x)
        its = _values(parent, 2 * since - fork.end_x, since)
    if min(mine.size, its.size) < VALUES:
        return None
    (low, middle, high), (its_low, its_middle, its_high) = (
        np.percentile(each, (25, 50, 75)).tolist() for each in (mine, its)
    )
    if low <= its_high and its_low <= high:
        return 1.0
    return float(middle / its_middle) if its_middle > 0 and middle > 0 else None


def _gap(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare losses at the same places, over the later half of the steps that both have."""
    if parent is None or fork is None:
        return None
    end = min(parent.end_x, fork.end_x)
    fewer = min(_values(each, since + 1, end, CAPACITY).size for each in (parent, fork))
    places = min(_PLACES, fewer // 2)  # each with values of both, which report at different steps
    if end - since < STEPS or places < VALUES:
        return None
    mine, its = (each.columns(since + 1, end, places).mean for each in (fork, parent))
    gaps = (mine - its)[-max(places // 2, VALUES) :]
    gaps = gaps[np.isfinite(gaps)]
    if gaps.size < VALUES:
        return None
    low, middle, high = np.percentile(gaps, (10, 50, 90)).tolist()
    return 0.0 if low <= 0 <= high else float(middle)


def _values(history: History, first: float, last: float, places: int = _PLACES) -> Floats:
    """Return the means of a history at up to so many places from step `first` to `last`."""
    means = history.columns(first, last, places).mean if last >= first else np.zeros(0)
    return means[np.isfinite(means)]


# The parent of a fork, for the live screen of the fork: its curves, and what differs
# -----------------------------------------------------------------------------------

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
        differing: What differs between its settings, versions and device and those of the fork.
    """

    step: int
    name: str = ""
    view: RunView | None = None
    curves: Curves = field(default_factory=dict)
    differing: Mapping[str, Sequence[object]] = field(default_factory=dict)


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
        self._known: tuple[list[int | None], dict[str, list[Any]]] | None = None

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
        last = self._last
        is_current = last is not None and last.view is view and last.name == path.name
        if not is_current:
            self._last = ForkParent(step, path.name, view, {} if view is None else _curves(view, step))
        assert self._last is not None
        return replace(self._last, differing=self._differing([path, fork]))

    def _differing(self, runs: Sequence[Path]) -> dict[str, list[Any]]:
        """Return what differs between two runs, read again only after it has changed."""
        times = [_time_of(run / name) for run in runs for name in (CONFIG, ENVIRONMENT)]
        if self._known is None or self._known[0] != times:
            self._known = times, what_differs(compare_setups(runs))
        return self._known[1]


def _time_of(path: Path) -> int | None:
    """Return when a file was written; None: it is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def fork_words(parent: ForkParent, fork: RunView) -> ForkWords:
    """Compare a fork with its parent, or say why not."""
    if not parent.name:
        return ForkWords("its parent is gone", "parent gone")
    if parent.view is None:
        return ForkWords("its parent has no journal", "no journal")
    if fork.step < parent.step + STEPS:
        words = f"compares from step {parent.step + STEPS:,}"
        return ForkWords(words, words)
    found = difference(parent.view, fork, parent.step, parent.differing)
    if not found.title:
        return ForkWords("too few values to compare", "too few values")
    return ForkWords(found.title, found.short, compares=True)


class GhostReader:
    """Reads the curves of runs to draw behind another, again only after they have grown. Not thread-safe."""

    def __init__(self) -> None:
        self._runs = RunCurves()
        self._known: dict[Path, tuple[RunView, Curves]] = {}

    def read(self, runs: Sequence[Path]) -> dict[Path, Curves]:
        """Return the curves of each run that has a readable journal; the same ones while it hasn't grown."""
        before, self._known = self._known, {}
        for run, view in self._runs.read(runs).items():
            known = before.get(run)
            is_current = known is not None and known[0] is view
            self._known[run] = known if known is not None and is_current else (view, _curves(view, 0))
        return {run: curves for run, (_, curves) in self._known.items()}


def _curves(view: RunView, step: int) -> Curves:
    return {
        chart: {label: history.since(step) for label, history in histories.items() if history.end_x > step}
        for chart, histories in view.histories.items()
        if chart not in {DEVICE, MEMORY}
    }


# The curves of several runs, to draw over each other
# ---------------------------------------------------

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
        from mptui.runs.store.index import read_run  # needs NumPy, and the first screen does not

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
