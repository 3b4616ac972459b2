"""Start, phases, pauses and end of a run."""

from typing import Any

from mptui import format as fmt
from mptui.events import Paused, PhaseChanged, Progress, Resumed, RunFinished, RunStarted
from mptui.registry.precisions import SIXTEEN_BIT
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import TASKS
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.labels import PHASE_WORDS, ranks_words
from mptui.runs.view.log_lines import Tone
from mptui.runs.view.view_state import ViewState

_LOGGED_PHASES = {"scanning", "preparing", "warming_up", "compiling"}
_AS_WANTED = {"completed", "stopped"}
"""Statuses of an end that needs nobody."""


def _start(view: ViewState, event: RunStarted) -> None:
    if view.started is not None:  # after a kill, the steps since the last checkpoint are repeated
        for history in [view.skips, *(h for group in view.histories.values() for h in group.values())]:
            history.forget_after(event.step)
        view.timeline.happen("restart")
    view.started, view.finished, view.ranks = event, None, None
    view.alerts = [alert for alert in view.alerts if not alert.lasts]
    view.throttled_since = view.throttled_until = None
    view.profile, view.precision, view.paused = event.profile, event.precision, False
    view.epochs = event.epochs
    view.plan(event.planned_lr)
    view.enter(event, "starting")


def _start_log(event: RunStarted) -> list[tuple[str, Tone]]:
    images = f"{event.train_samples:,} + {event.val_samples:,} images"
    lines: list[tuple[str, Tone]] = [
        (f"{event.model}, {fmt.short(event.parameters)} parameters, on {event.dataset}: {images}", "plain"),
        (f"precision {event.precision}: {event.precision_reason}", "quiet"),
    ]
    if words := ranks_words(event.ranks, event.nodes):
        lines.append((f"trains in {words}", "plain"))
    if event.resumed_from_step is not None:
        lines.append((f"resumed at step {event.resumed_from_step:,}", "plain"))
    return lines + [(note, "quiet") for note in event.notes]


def start_lines(event: RunStarted) -> list[str]:
    """Describe the start of a run for a console."""
    on = event.precision in SIXTEEN_BIT
    precision = SIXTEEN_BIT[event.precision] if on else "off (float32)"
    speed = [
        "TF32" if event.tf32 else "",
        "channels last" if event.channels_last else "",
        f"compile {event.compile_mode}" if event.compile_mode != "off" else "",
    ]
    task = TASKS.get(event.task)
    has_classes = task is None or task.sample is not SampleKind.IMAGE
    effective = f" x {event.accumulate}" if event.accumulate > 1 else ""
    lines = [
        *event.notes,
        f"Device: {event.device_name} ({event.device})",
        f"Processes: {words}" if (words := ranks_words(event.ranks, event.nodes)) else "",
        f"Mixed precision: {precision}: {event.precision_reason}",
        f"✓ AMP enabled with {SIXTEEN_BIT[event.precision]}" if on else "",
        f"{event.model}, {event.parameters / 1e6:.1f} M parameters, {event.image_size} px, "
        f"batch {event.batch_size}{effective}" + "".join(f", {item}" for item in speed if item),
        f"{event.dataset}: {event.train_samples:,} training and {event.val_samples:,} validation images"
        + (f", {len(event.classes)} classes" if has_classes else ""),
        f"Run: {event.directory}",
    ]
    if event.resumed_from_step is not None:
        lines.append(f"Resumed after step {event.resumed_from_step:,}")
    return [line for line in lines if line]


def _summarize_start(document: dict[str, Any], event: RunStarted) -> None:
    document |= {
        "profile": event.profile,
        "task": event.task,
        "model": event.model,
        "parameters": event.parameters,
        "dataset": {
            "name": event.dataset,
            "train_samples": event.train_samples,
            "val_samples": event.val_samples,
            "classes": len(event.classes),
        },
        "device": event.device_name,
        "ranks": event.ranks,
        "nodes": event.nodes,
        "price_per_hour": event.price_per_hour,
        "precision": {
            "requested": event.precision_requested,
            "used": event.precision,
            "reason": event.precision_reason,
        },
    }


def _enter_phase(view: ViewState, event: PhaseChanged) -> None:
    view.compiled |= event.phase == "compiling"
    view.paused &= event.phase != "restarting"
    view.enter(event, event.phase, event.detail)
    view.phase_expected_s = event.expected_s


def _phase_log(event: PhaseChanged) -> list[tuple[str, Tone]]:
    if event.phase not in _LOGGED_PHASES:
        return []
    word = PHASE_WORDS.get(event.phase, event.phase)
    return [(f"{word} {event.detail}".rstrip() + expected_time(event), "quiet")]


def _phase_lines(event: PhaseChanged) -> list[str]:
    if event.phase in {"scanning", "compiling"}:
        return [f"{event.phase} {event.detail}{expected_time(event)} …"]
    return [f"{event.detail} …"] if event.phase == "preparing" and event.detail else []


def expected_time(event: PhaseChanged) -> str:
    """Format the expected duration of a phase, and what it is known from; empty if it is not known."""
    if event.expected_s is None:
        return ""
    return f" ({' '.join(('about', fmt.duration(event.expected_s), event.known_from)).rstrip()})"


def _progress(view: ViewState, event: Progress) -> None:
    """Update the progress of a phase, or of one inside it (e.g. filling a cache) until that one ends."""
    inner = event.phase != view.phase
    if inner:
        view.pace.interrupted()
    if inner and event.done >= event.total:
        view.progress, view.phase_since = None, event.time
    else:
        view.progress = event if event.total > 0 else None


def _pause(view: ViewState, _: Paused) -> None:
    view.paused = True
    view.pace.interrupted()


def _go_on(view: ViewState, _: Resumed) -> None:
    view.paused = False
    view.compiled = False
    view.pace.interrupted()


def _finish(view: ViewState, event: RunFinished) -> None:
    view.finished, view.paused = event, False
    view.alerts = []
    if event.status not in _AS_WANTED:
        message = ": ".join([event.status.replace("_", " "), *event.message.splitlines()[:1]])
        view.open_alert(event, event.status, message, "bad")
    view.enter(event, "finished")


def _end_log(event: RunFinished) -> list[tuple[str, Tone]]:
    tone: Tone = "good" if event.exit_code == 0 else "bad"
    lines: list[tuple[str, Tone]] = [(f"{event.status} after {fmt.duration(event.seconds)}", tone)]
    lines += [(line, tone) for line in event.message.splitlines()]
    return [*lines, *((line, "plain") for line in event.hint.splitlines())]


LIFECYCLE = (
    EventSpec(
        event=RunStarted,
        handle=_start,
        log_lines=_start_log,
        console_lines=start_lines,
        summarize=_summarize_start,
    ),
    EventSpec(
        event=PhaseChanged,
        handle=_enter_phase,
        log_lines=_phase_log,
        console_lines=_phase_lines,
    ),
    EventSpec(
        event=Progress,
        handle=_progress,
        thinned="none",
        shown_at_once=False,
    ),
    EventSpec(
        event=Paused,
        handle=_pause,
        log_lines=lambda event: [(f"paused at step {event.step:,}", "plain")],
    ),
    EventSpec(
        event=Resumed,
        handle=_go_on,
        log_lines=lambda _: [("training continues", "plain")],
    ),
    EventSpec(
        event=RunFinished,
        handle=_finish,
        log_lines=_end_log,
    ),
)
