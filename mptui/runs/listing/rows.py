"""The rows of the list of runs, from their summaries; imports no torch and no numpy.

A summary is read again only after its file has changed: a look at 200 runs costs two `stat` calls each.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mptui import format as fmt
from mptui.runs.listing.forking import parent_of
from mptui.runs.store.directory import (
    CONFIG,
    CRASHED,
    SUMMARY,
    is_trained,
    list_runs,
    read_summary,
    started_of,
)
from mptui.runs.view.log_lines import metric_words

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list; "" and None: not known.

    Attributes:
        path: Its directory.
        state: Its status (`mptui.runs.store.directory.status_of`).
        task: Its task.
        model: Its network.
        data: Name or path of its data.
        precision: The precision in use.
        metric: The name of its primary metric.
        best: The best value of this metric.
        rate: Training samples a second.
        seconds: The time of its last process in seconds.
        started: When it was last started, in seconds since the epoch.
        parent: The run that it was forked from, and the step there; None: it is no fork.
    """

    path: Path
    state: str
    task: str
    model: str
    data: str
    precision: str
    metric: str
    best: float | None
    rate: float | None
    seconds: float | None
    started: float
    parent: tuple[Path, int] | None

    @property
    def name(self) -> str:
        """The name of the run, as its directory has it."""
        return self.path.name

    @property
    def best_words(self) -> str:
        """The best value with its metric: `top-1 76.4 %`, `loss 0.0123`."""
        known = [] if self.best is None else metric_words({self.metric: self.best})
        return known[0].removeprefix("val_") if known else fmt.UNKNOWN

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each of these lower-case words is in a word of the row."""
        state = self.state.replace("_", " ")
        texts = (self.name, self.state, state, self.task, self.model, self.data, self.precision, self.metric)
        said = " ".join(texts).lower()
        return all(word in said for word in words)


class RunList:
    """The runs of a folder.

    Args:
        folder: The folder of all runs.
        read: Reads the summary of a run.
    """

    def __init__(self, folder: Path, read: Callable[[Path], dict[str, Any]] = read_summary) -> None:
        self.folder, self._read = folder, read
        self._known: dict[Path, tuple[object, RunRow]] = {}

    def rows(self) -> list[RunRow]:
        """Return the row of each run, newest first; reads the summaries that have changed."""
        known = self._known
        self._known = {run: self._row(run, known) for run in list_runs(self.folder)}
        rows = [_with_state(row) for _, row in self._known.values()]
        return sorted(rows, key=lambda row: (row.started, row.name), reverse=True)

    def _row(self, run: Path, known: dict[Path, tuple[object, RunRow]]) -> tuple[object, RunRow]:
        try:
            status = os.stat(run / SUMMARY)  # noqa: PTH116 - as the files' writer does
            version = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            version = None
        before = known.get(run)
        if before is not None and before[0] == version and _is_parent_there(before[1]):
            return before
        return version, row_of(run, self._read(run))


def row_of(run: Path, summary: dict[str, Any]) -> RunRow:
    """Return the row of a run from its summary."""
    best = summary.get("best") or {}
    return RunRow(
        path=run,
        state=summary.get("status") or RUNNING,
        task=summary.get("task") or "",
        model=summary.get("model") or "",
        data=_word(summary, "dataset", "name"),
        precision=_word(summary, "precision", "used"),
        metric=best.get("metric") or "",
        best=_number(best.get("value")),
        rate=_number(summary.get("samples_per_second")),
        seconds=_number((summary.get("time") or {}).get("total_s")),
        started=started_of(run, summary),
        parent=parent_of(run, summary),
    )


def _is_parent_there(row: RunRow) -> bool:
    """Whether the parent of a fork still has its name; a run that is no fork needs none."""
    return row.parent is None or (row.parent[0] / CONFIG).is_file()


def _with_state(row: RunRow) -> RunRow:
    """Tell a run that is trained from one whose process has gone."""
    return replace(row, state=CRASHED) if row.state == RUNNING and not is_trained(row.path) else row


def _word(summary: dict[str, Any], table: str, key: str) -> str:
    value = (summary.get(table) or {}).get(key)
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the list: its name, and the place of a row."""

    name: str
    place: Callable[[RunRow], Any]


def _falling(value: float | None) -> tuple[bool, float]:
    """Sort large values first, unknown ones last."""
    return value is None, -(value or 0.0)


ORDERS = (
    Order("newest", lambda row: 0),
    Order("name", lambda row: row.name.lower()),
    Order("state", lambda row: (row.state != RUNNING, row.state)),
    Order("model", lambda row: (row.model, row.data)),
    Order("best", lambda row: (row.best is None, row.metric, _falling(row.best))),
    Order("images/s", lambda row: _falling(row.rate)),
    Order("time", lambda row: _falling(row.seconds)),
)
"""The orders of the list, as the key cycles through them; rows of one place stay newest first."""


def chosen_rows(rows: Sequence[RunRow], order: Order, words: str = "") -> list[RunRow]:
    """Return the rows that match all `words`, in an order."""
    wanted = words.lower().split()
    return sorted((row for row in rows if row.matches(wanted)), key=order.place)
