"""Advice, commands, and switches of the profile."""

from dataclasses import replace

from mptui.events import Advice, CommandAnswered, PresetSwitched, RunStarted
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.log_lines import LogLine, Tone, rate_words
from mptui.runs.view.view_state import OPEN_COMMANDS, OpenAlert, ViewState
from mptui.text import clean

BOUND = "_bound"
"""End of the codes of advice on what the steps are bound by."""


def _advise(view: ViewState, event: Advice) -> None:
    """Offer the setting, in the alert of the same code if there is one; advice without it is only logged."""
    if event.code.endswith(BOUND):  # the steps are bound by something else than before
        view.end_alerts(*(alert.code for alert in view.alerts if alert.code.endswith(BOUND)))
    if event.setting is None:
        return
    known = [alert for alert in view.alerts if alert.code == event.code and alert.lasts]
    if known:
        view.alerts[view.alerts.index(known[0])] = replace(known[0], setting=event.setting)
    else:
        view.open_alert(event, event.code, event.message, "plain", setting=event.setting, lasts=False)


def _advice_log(event: Advice) -> list[tuple[str, Tone]]:
    tip = f" (press a to apply {event.setting})" if event.setting else ""
    return [(f"advice: {event.message}{tip}", "plain")]


def _advice_lines(event: Advice) -> list[str]:
    return [f"advice: {event.message}" + (f" (--set {event.setting})" if event.setting else "")]


def _answer(view: ViewState, event: CommandAnswered) -> None:
    """Log a command in one line that grows: requested … accepted at step N, done."""
    words = {"asked": "requested …", "taken": f"accepted at step {event.step:,}"}.get(
        event.state, event.state
    )
    if event.detail and event.state != "asked":
        words = f"{words} ({event.detail})"
    line = view.commands.get(event.command)
    if line is None or event.state == "asked":
        if event.detail and event.state == "asked":
            words = f"{event.detail} {words}"
        line = LogLine(event.time, clean(f"{event.command} {words}"))
        view.log.append(line)
        view.commands[event.command] = line
    else:
        line.text = clean(f"{line.text} {words}")
    if event.state == "refused":
        line.tone = "warn"
    if event.state in {"done", "refused"} or len(view.commands) > OPEN_COMMANDS:
        del view.commands[event.command]


def _switch(view: ViewState, event: PresetSwitched) -> None:
    view.profile = event.profile
    view.compiled = view.compiled and not any(map(_affects_compiled_code, event.changes))
    view.alerts = [
        left for alert in view.alerts if (left := _without_offer(alert, event.changes)) is not None
    ]
    if view.started is not None:
        view.started = _with_changes(view.started, event.changes)
    if event.planned_lr:
        view.plan(event.planned_lr)
    view.mark(event, _switch_label(event))
    view.timeline.happen("switch")


def _without_offer(alert: OpenAlert, changes: dict[str, list[str]]) -> OpenAlert | None:
    """Return the alert without a setting that was taken, or changed otherwise; None: nothing is left."""
    if (alert.setting or "").partition("=")[0] not in changes:
        return alert
    return replace(alert, setting=None) if alert.lasts else None


def _affects_compiled_code(key: str) -> bool:
    return key.startswith(("speed.", "precision.", "memory.")) or key == "training.batch_size"


def _with_changes(started: RunStarted, changes: dict[str, list[str]]) -> RunStarted:
    """Update the settings of a run's start by `changes` (table.key -> old, new)."""
    new = {key: values[-1] for key, values in changes.items() if values}
    return replace(
        started,
        compile_mode=new.get("speed.compile", started.compile_mode),
        tf32=started.tf32
        if "precision.matmul" not in new
        else started.device.startswith("cuda") and new["precision.matmul"] != "highest",
        channels_last=new.get("speed.channels_last", str(started.channels_last)) == "True",
    )


def _switch_label(event: PresetSwitched) -> str:
    """Return the label of the mark: the profile, or the changed setting."""
    if event.undone:
        return f"back to {event.profile}"
    if event.previous != event.profile:
        return f"{event.previous} → {event.profile}"
    key, values = next(iter(event.changes.items()), ("", []))
    return f"{key.rpartition('.')[2]} {' → '.join(values)}"


def _switch_log(event: PresetSwitched) -> list[tuple[str, Tone]]:
    if event.undone:
        words = f"switch undone: {event.profile} at step {event.step:,}"
    elif event.previous == event.profile:
        words = f"changed at step {event.step:,}"
    else:
        words = f"profile {event.previous} → {event.profile} at step {event.step:,}"
    parts = rate_words(event.lr, event.batch, event.ramp_steps)
    parts += [f"{key} {' → '.join(values)}" for key, values in event.changes.items()]
    return [(f"{words}: {', '.join(parts)}" if parts else words, "plain")]


CONTROL = (
    EventSpec(
        event=Advice,
        handle=_advise,
        log_lines=_advice_log,
        console_lines=_advice_lines,
    ),
    EventSpec(
        event=CommandAnswered,
        handle=_answer,
        is_progress=False,
    ),
    EventSpec(
        event=PresetSwitched,
        handle=_switch,
        log_lines=_switch_log,
    ),
)
