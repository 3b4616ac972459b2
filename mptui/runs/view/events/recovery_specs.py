"""Warnings, alerts, diagnoses and recoveries."""

from typing import Any

from mptui.events import Alert, Diagnosed, Recovered, Warned
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.log_lines import Tone
from mptui.runs.view.view_state import ViewState

LIST_LIMIT = 100
"""Largest number of entries of a list in summary.json: the first half, and the latest."""

_DISK = "disk"
_ALARMING: dict[str, Tone] = {"hang": "bad", "rank_silent": "bad", "rank_lost": "warn", _DISK: "warn"}
"""Code of a warning that needs a person -> tone of its alert."""


def _warn(view: ViewState, event: Warned) -> None:
    if event.code == "compile_failed":
        view.compiled = False
    if event.code in _ALARMING:
        tone, lasts = _ALARMING[event.code], event.code != "rank_lost"
        view.open_alert(event, event.code, event.message, tone, lasts=lasts)


def _summarize_warning(document: dict[str, Any], event: Warned) -> None:
    _append(document["warnings"], {"code": event.code, "message": event.message})


def _alert(view: ViewState, event: Alert) -> None:
    if event.over:
        view.end_alerts(event.code)
    else:
        view.open_alert(event, event.code, event.message, "warn" if event.code == _DISK else "bad")


def _diagnose(view: ViewState, event: Diagnosed) -> None:
    view.mark(event, f"{event.problem} in {event.where}" if event.where else event.problem, "warn")


def _diagnosis_log(event: Diagnosed) -> list[tuple[str, Tone]]:
    place = " ".join(word for word in (event.where, event.layer, event.operation) if word)
    words = f"{event.problem}: {'first in ' + place if place else 'not reproduced'}"
    line = f"{words}; {event.detail}" if event.detail else words
    return [(line, "warn"), *((f"try: {tip}", "plain") for tip in event.advice[:2])]


def _recover(view: ViewState, event: Recovered) -> None:
    view.mark(event, event.action, "warn")
    if event.problem == _DISK:
        view.end_alerts(_DISK)
    view.timeline.happen("recovery")


def _summarize_recovery(document: dict[str, Any], event: Recovered) -> None:
    _append(document["recoveries"], {"kind": event.problem, "step": event.step, "action": event.action})


def _append(entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    entries.append(entry)
    if len(entries) > LIST_LIMIT:
        del entries[LIST_LIMIT // 2]


RECOVERY = (
    EventSpec(
        event=Warned,
        handle=_warn,
        log_lines=lambda event: [(event.message, "warn")],
        console_lines=lambda event: [f"warning: {event.message}"],
        summarize=_summarize_warning,
        is_progress=False,
    ),
    EventSpec(
        event=Alert,
        handle=_alert,
        log_lines=lambda event: [(event.message, "good" if event.over else "bad")],
        console_lines=lambda event: [f"alert: {event.message}"],
    ),
    EventSpec(
        event=Diagnosed,
        handle=_diagnose,
        log_lines=_diagnosis_log,
        # no line on a console: the recovery or the error that follows has one
    ),
    EventSpec(
        event=Recovered,
        handle=_recover,
        log_lines=lambda event: [(f"{event.problem}: {event.action}", "warn")],
        console_lines=lambda event: [f"{event.problem}: {event.action}"],
        summarize=_summarize_recovery,
    ),
)
