"""index.json: the view of a run at a position of its journal, so that readers don't need all of it."""

import contextlib
import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from mptui.errors import RunDirectoryError
from mptui.events import Event, finite_json, from_record, to_record
from mptui.io.files import Guard, open_regular, read_regular, replace_file
from mptui.io.records import as_time, reader_of
from mptui.runs.store import journal
from mptui.runs.store.journal import read_events
from mptui.runs.view.history import History, SavedHistory, SavedTimeline, Timeline
from mptui.runs.view.run_view import RunView
from mptui.runs.view.state import (
    BRANCHES,
    ENDS_KEPT,
    EPOCHS_KEPT,
    LOG_LINES,
    MARKS,
    METRICS,
    OPEN_ALERTS,
    OPEN_COMMANDS,
    PREPARATION_STEPS,
    Branch,
    ChartBest,
    LatestEvents,
    Mark,
    OpenAlert,
    Pace,
    PlainState,
    PreparationStep,
)
from mptui.runs.view.words import LogLine, Tone, cleaned
from mptui.text import clean

# index.json: the view of a run at a position of its journal, so that readers don't need all of it
# ------------------------------------------------------------------------------------------------
# Two lines of JSON. The first has the number of journal bytes that the second covers, with the sha256 of
# the last of these bytes and of the second line; the second is the view of the run at that position, of
# constant size for a run of any length. A reader reads both lines and the rest of the journal.
#
# It can be deleted at any time: a missing or damaged index, or one of another version or journal, is
# rebuilt from the journal.

NAME = "index.json"
VERSION = 8

LARGEST = 64 << 20
"""Largest size of an index."""

CHECKED = 1 << 12
"""Last bytes of the covered journal, whose hash identifies it."""


class Index:
    """Updates the index of the run that this process owns.

    It handles only events read from the journal, so it always matches a number of bytes. Thread-safe.

    Args:
        run: The run's directory.
        guard: Context around each change of the file.
    """

    def __init__(self, run: Path, guard: Guard = contextlib.nullcontext) -> None:
        self._run = run
        self._guard = guard
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._position = self._written = 0

    def renew(self) -> None:
        """Read new events of the journal and write the index if there are any; failures are retried later."""
        with self._lock, contextlib.suppress(OSError, RunDirectoryError):
            if self._view is None:
                self._view, self._position = read_index(self._run)
                self._written = self._position
            for position in fold_on(self._run, self._view, self._position):
                self._position = position
            if self._position != self._written:
                _write(self._run, self._view, self._position, self._guard)
                self._written = self._position


def read_index(run: Path) -> tuple[RunView, int]:
    """Return the view in the index of a run, and the position in the journal to continue from.

    Returns an empty view and 0 if there is no usable index.
    """
    try:
        header, body = _read_lines(run)
        position = header["journal"]
        is_known = header["version"] == VERSION and type(position) is int
        if is_known and header["check"] == _check(run, position):
            return from_document(body), position
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return RunView(), 0


def read_run(run: Path) -> RunView:
    """Return the current view of a run, from its index and the rest of the journal.

    Raises:
        OSError: There is no readable journal.
    """
    view, position = read_index(run)
    for _ in fold_on(run, view, position):
        pass
    return view


def view_to_resume(run: Path) -> tuple[RunView, int]:
    """Return the view of a run that is about to be resumed, and the position of all of its journal so far."""
    view, position = read_index(run)
    with contextlib.suppress(OSError):  # it has no journal yet
        for after in fold_on(run, view, position):
            position = after
    view.finished = None
    return view, position


def fold_on(run: Path, view: RunView, position: int) -> Iterator[int]:
    """Handle the events of the journal from byte `position`, some at a time; yield the position after them.

    Raises:
        OSError: The journal can't be read.
    """
    for after, events in read_events(run / journal.NAME, position):
        for event in events:
            view.handle(event)
        yield after


def _read_lines(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read header and body of the index.

    Raises:
        OSError: It is missing.
        ValueError: It is damaged.
    """
    first, _, second = read_regular(run / NAME, LARGEST).partition(b"\n")
    header = json.loads(first)
    if header["sha256"] != hashlib.sha256(second).hexdigest():
        raise ValueError("damaged")
    return header, json.loads(second)


def _write(run: Path, view: RunView, position: int, guard: Guard) -> None:
    body = json.dumps(to_document(view), separators=(",", ":"), allow_nan=False).encode()
    header = {
        "version": VERSION,
        "journal": position,
        "check": _check(run, position),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    replace_file(run / NAME, json.dumps(header).encode() + b"\n" + body, guard)


def _check(run: Path, position: int) -> str:
    """Return the sha256 of the last journal bytes before `position`.

    Raises:
        OSError: The journal can't be read.
        ValueError: It is shorter.
    """
    size = min(position, CHECKED)
    file = open_regular(run / journal.NAME)
    try:
        data = os.pread(file, size, position - size)
    finally:
        os.close(file)
    if len(data) != size:
        raise ValueError("another journal")
    return hashlib.sha256(data).hexdigest()


# Converts a view to JSON and back, so that a screen shows a run of any length at once
# ------------------------------------------------------------------------------------
# The document is treated as untrusted: types are checked, texts made safe to show, and the limits of a view
# enforced.

_EVENTS: dict[str, type[Event]] = {each.name: get_args(each.type)[0] for each in fields(LatestEvents)}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the log, or the line of an open command, which may have left the log."""

    time: float
    text: str
    tone: Tone
    command: str | None
    in_log: bool


@dataclass(frozen=True, slots=True)
class _Curve:
    chart: str
    series: str
    history: SavedHistory
    abandoned: SavedHistory | None


@dataclass(frozen=True, slots=True)
class _Best:
    chart: str
    step: int
    value: float
    epoch: int


@dataclass(frozen=True, slots=True)
class _Saved:
    plain: PlainState
    pace: Pace
    best: list[_Best]
    earlier_bests: list[list[_Best]]
    branches: list[Branch]
    preparation: list[PreparationStep]
    alerts: list[OpenAlert]
    marks: list[Mark]
    lines: list[_Line]
    skips: SavedHistory
    curves: list[_Curve]
    by_epoch: list[_Curve]
    timeline: SavedTimeline


_read = reader_of(_Saved)


def to_document(view: RunView) -> dict[str, Any]:
    """Return the complete state of a view, ready for JSON."""
    saved = _Saved(
        plain=PlainState(**{each.name: getattr(view, each.name) for each in fields(PlainState)}),
        pace=view.pace,
        best=_bests(view.best),
        earlier_bests=[_bests(each) for each in view.earlier_bests],
        branches=view.branches,
        preparation=view.preparation,
        alerts=view.alerts,
        marks=list(view.marks),
        lines=_lines(view),
        skips=view.skips.saved(),
        curves=[
            _curve(chart, series, history)
            for chart, group in view.histories.items()
            for series, history in group.items()
        ],
        by_epoch=[_curve("", name, history) for name, history in view.by_epoch.items()],
        timeline=view.timeline.saved(),
    )
    events = {name: _record(getattr(view, name)) for name in _EVENTS}
    document: dict[str, Any] = finite_json(saved)
    return {"events": events, **document}


def _curve(chart: str, series: str, history: History) -> _Curve:
    abandoned = history.abandoned
    return _Curve(chart, series, history.saved(), None if abandoned is None else abandoned.saved())


def _history(curve: _Curve, *capacity: int) -> History:
    history = History.loaded(curve.history, *capacity)
    history.abandoned = None if curve.abandoned is None else History.loaded(curve.abandoned, *capacity)
    return history


def _bests(best: dict[str, ChartBest]) -> list[_Best]:
    return [_Best(chart, *each) for chart, each in best.items()]


def _read_bests(bests: list[_Best]) -> dict[str, ChartBest]:
    return {clean(best.chart, 24): ChartBest(best.step, best.value, best.epoch) for best in bests}


def from_document(document: dict[str, Any]) -> RunView:
    """Return the view that was saved.

    Raises:
        TypeError, ValueError, KeyError, OverflowError: The document is not a valid view.
    """
    saved: _Saved = _read(document)
    curves = max(len(saved.curves), len(saved.by_epoch))
    limits = {
        "marks": MARKS,
        "alerts": OPEN_ALERTS,
        "branches": BRANCHES,
        "preparation": PREPARATION_STEPS,
    }
    is_too_much = curves > METRICS or any(len(getattr(saved, name)) > n for name, n in limits.items())
    if is_too_much or len(saved.pace.ends) > ENDS_KEPT:
        raise ValueError("too much for a view")
    view = RunView()
    for name, value in vars(saved.plain).items():
        setattr(view, name, clean(value) if isinstance(value, str) else value)
    as_time(view.time)
    view.plan(view.planned_lr)
    for name, kind in _EVENTS.items():
        setattr(view, name, _event(document["events"][name], kind))
    view.pace = saved.pace
    view.best = _read_bests(saved.best)
    view.earlier_bests.extend(map(_read_bests, saved.earlier_bests))
    view.branches = [_branch(each) for each in saved.branches]
    view.alerts = [_alert(alert) for alert in saved.alerts]
    view.preparation = [
        replace(each, words=clean(each.words), found=clean(each.found)) for each in saved.preparation
    ]
    view.marks.extend(Mark(mark.step, clean(mark.label, 32), mark.tone) for mark in saved.marks)
    _put_lines(view, saved.lines)
    view.skips = History.loaded(saved.skips)
    for curve in saved.curves:
        group = view.histories.setdefault(clean(curve.chart, 24), {})
        group[clean(curve.series, 24)] = _history(curve)
    for curve in saved.by_epoch:
        view.by_epoch[clean(curve.series, 24)] = _history(curve, EPOCHS_KEPT)
    names = [clean(name) for name in saved.timeline.names]
    view.timeline = Timeline.loaded(replace(saved.timeline, names=names))
    return view


def _lines(view: RunView) -> list[_Line]:
    """Return the log, oldest first, after the lines of open commands that have left it."""
    commands = {id(line): command for command, line in view.commands.items()}
    logged = {id(line) for line in view.log}
    gone = [line for line in view.commands.values() if id(line) not in logged]
    return [
        _Line(line.time, line.text, line.tone, commands.get(id(line)), id(line) in logged)
        for line in [*gone, *view.log]
    ]


def _put_lines(view: RunView, lines: list[_Line]) -> None:
    if len(lines) > LOG_LINES + OPEN_COMMANDS + 1:
        raise ValueError("too much for a log")
    log: deque[LogLine] = view.log
    for each in lines:
        line = LogLine(as_time(each.time), clean(each.text), each.tone)
        if each.in_log:
            log.append(line)
        if each.command is not None:
            view.commands[clean(each.command)] = line


def _alert(alert: OpenAlert) -> OpenAlert:
    setting = None if alert.setting is None else clean(alert.setting)
    as_time(alert.time)
    return replace(alert, code=clean(alert.code), message=clean(alert.message), setting=setting)


def _branch(branch: Branch) -> Branch:
    as_time(branch.began)
    return replace(branch, ended=clean(branch.ended), metric=clean(branch.metric))


def _record(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else to_record(event)


def _event(record: object, kind: type[Event]) -> Event | None:
    if record is None:
        return None
    event = from_record(record, kind) if isinstance(record, dict) else None
    if event is None:
        raise ValueError(f"no {kind.kind}")
    return cleaned(event)
