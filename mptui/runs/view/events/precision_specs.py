"""Precision, loss scale, skipped steps and numerics."""

from typing import Any

from mptui import format as fmt
from mptui.events import LossScale, Numerics, PrecisionChanged, StepSkipped
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.log_lines import Tone
from mptui.runs.view.view_state import ViewState


def _change_precision(view: ViewState, event: PrecisionChanged) -> None:
    view.precision = event.precision
    if event.previous:
        view.mark(event, f"{event.previous} → {event.precision}", "warn")
        view.timeline.happen("switch")


def _precision_log(event: PrecisionChanged) -> list[tuple[str, Tone]]:
    change = f"{event.previous or fmt.UNKNOWN} → {event.precision}"
    return [(f"precision {change}: {event.reason}", "warn")]


def _summarize_precision(document: dict[str, Any], event: PrecisionChanged) -> None:
    document["precision"]["used"] = event.precision


def _skip(view: ViewState, event: StepSkipped) -> None:
    """Count the skipped steps; consecutive ones share a line of the log."""
    view.skipped_steps, view.skip_streak, view.last_skip = event.total, event.streak, event.step
    view.skips.append(event.step, event.count)
    view.timeline.skipped(event.count)
    if view.log and "skipped: gradients" in view.log[-1].text:
        view.log.pop()


def _skip_log(event: StepSkipped) -> list[tuple[str, Tone]]:
    steps = fmt.counted(event.count, "step")
    scale = "" if event.loss_scale is None else f"; loss scale now {fmt.count(event.loss_scale)}"
    return [(f"{steps} skipped: gradients not finite{scale}", "warn")]


def _skip_lines(event: StepSkipped) -> list[str]:
    scale = "" if event.loss_scale is None else f", loss scale {fmt.count(event.loss_scale)}"
    return [f"skipped {event.count} step(s) with non-finite gradients ({event.total} in all{scale})"]


def _scale(view: ViewState, event: LossScale) -> None:
    view.loss_scale = event
    view.timeline.scaled(event.scale)


def _probe(view: ViewState, event: Numerics) -> None:
    view.numerics = event


PRECISION = (
    EventSpec(
        event=PrecisionChanged,
        handle=_change_precision,
        log_lines=_precision_log,
        console_lines=lambda e: [f"precision: {e.previous} -> {e.precision}: {e.reason}"],
        summarize=_summarize_precision,
    ),
    EventSpec(
        event=StepSkipped,
        handle=_skip,
        log_lines=_skip_log,
        console_lines=_skip_lines,
        # not in the summary: each step event has the total
    ),
    EventSpec(
        event=LossScale,
        handle=_scale,
        # no value for trackers: each step event has the scale
    ),
    EventSpec(event=Numerics, handle=_probe),
)
