"""Converts a view to JSON and back, so that a screen shows a run of any length at once.

The document is treated as untrusted: types are checked, texts made safe to show, and the limits of a view
enforced.
"""

from collections import deque
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from mptui.codec import finite_json, from_record, to_record
from mptui.events import Event
from mptui.fields import as_time, reader_of
from mptui.runs.view.cleaned import cleaned
from mptui.runs.view.eta import Pace
from mptui.runs.view.history import History, SavedHistory, SavedTimeline, Timeline
from mptui.runs.view.log_lines import LogLine, Tone
from mptui.runs.view.run_view import RunView
from mptui.runs.view.view_state import (
    EPOCHS_KEPT,
    LOG_LINES,
    MARKS,
    METRICS,
    OPEN_ALERTS,
    OPEN_COMMANDS,
    LatestEvents,
    Mark,
    OpenAlert,
    PlainState,
)
from mptui.text import clean

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


@dataclass(frozen=True, slots=True)
class _Best:
    chart: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class _Saved:
    plain: PlainState
    pace: Pace
    best: list[_Best]
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
        best=[_Best(chart, *best) for chart, best in view.best.items()],
        alerts=view.alerts,
        marks=list(view.marks),
        lines=_lines(view),
        skips=view.skips.saved(),
        curves=[
            _Curve(chart, series, history.saved())
            for chart, group in view.histories.items()
            for series, history in group.items()
        ],
        by_epoch=[_Curve("", name, history.saved()) for name, history in view.by_epoch.items()],
        timeline=view.timeline.saved(),
    )
    events = {name: _record(getattr(view, name)) for name in _EVENTS}
    document: dict[str, Any] = finite_json({"events": events, **asdict(saved)})
    return document


def from_document(document: dict[str, Any]) -> RunView:
    """Return the view that was saved.

    Raises:
        TypeError, ValueError, KeyError, OverflowError: The document is not a valid view.
    """
    saved: _Saved = _read(document)
    curves = max(len(saved.curves), len(saved.by_epoch))
    if curves > METRICS or len(saved.marks) > MARKS or len(saved.alerts) > OPEN_ALERTS:
        raise ValueError("too much for a view")
    view = RunView()
    for name, value in vars(saved.plain).items():
        setattr(view, name, clean(value) if isinstance(value, str) else value)
    as_time(view.time)
    view.plan(view.planned_lr)
    for name, kind in _EVENTS.items():
        setattr(view, name, _event(document["events"][name], kind))
    view.pace = saved.pace
    view.best = {clean(best.chart, 24): (best.step, best.value) for best in saved.best}
    view.alerts = [_alert(alert) for alert in saved.alerts]
    view.marks.extend(Mark(mark.step, clean(mark.label, 32), mark.tone) for mark in saved.marks)
    _put_lines(view, saved.lines)
    view.skips = History.loaded(saved.skips)
    for curve in saved.curves:
        group = view.histories.setdefault(clean(curve.chart, 24), {})
        group[clean(curve.series, 24)] = History.loaded(curve.history)
    for curve in saved.by_epoch:
        view.by_epoch[clean(curve.series, 24)] = History.loaded(curve.history, EPOCHS_KEPT)
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


def _record(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else to_record(event)


def _event(record: object, kind: type[Event]) -> Event | None:
    if record is None:
        return None
    event = from_record(record, kind) if isinstance(record, dict) else None
    if event is None:
        raise ValueError(f"no {kind.kind}")
    return cleaned(event)
