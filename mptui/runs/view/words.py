"""Lines of the log, and the wording that several of them share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mptui import format as fmt
from mptui.events import Numerics
from mptui.runs.view.labels import shown
from mptui.text import clean

Tone = Literal["plain", "quiet", "good", "warn", "bad"]


@dataclass(slots=True)
class LogLine:
    """A line of the log. `text` is safe to show; the line of a command grows with its state."""

    time: float
    text: str
    tone: Tone = "plain"


def rate_words(lr: Sequence[float], batch: Sequence[int], ramp_steps: int) -> list[str]:
    """Describe the changes of the effective learning rate and batch, each given before and after."""
    words = []
    if len(lr) == 2 and lr[0] != lr[1]:
        ramp = f" in {ramp_steps} steps" if ramp_steps else ""
        words.append(f"effective lr {lr[0]:.3g} → {lr[1]:.3g}{ramp}")
    if len(batch) == 2 and batch[0] != batch[1]:
        words.append(f"effective batch {batch[0]:,} → {batch[1]:,}")
    return words


def metric_words(metrics: dict[str, float]) -> list[str]:
    """Format each metric with its value: `top-1 76.4 %`."""
    words = []
    for name, value in metrics.items():
        place = shown(name)
        words.append(f"{place.word or name} {fmt.percent(value) if place.fraction else fmt.figure(value)}")
    return words


def numerics_advice(event: Numerics) -> str:
    """Describe the best loss scale, next to the one in use."""
    if event.best_scale is None:
        if event.loss_scale is not None:
            return "the gradients of this step overflowed: the step was skipped, the loss scale is lowered"
        return "these gradients don't fit fp16 with any loss scale; bf16 has the range"
    if event.loss_scale is not None:
        now = f"a loss scale of {event.loss_scale:,.0f} loses {fmt.percent(event.lost)} of the gradients"
        largest = f"; {event.best_scale:,.0f} is the largest that they allow"
        return now + largest if event.best_scale > event.loss_scale else now
    best = f"{event.best_scale:,.0f} would lose {fmt.percent(event.lost_at_best)}"
    return f"in fp16 a scale of {best} of the gradients; {clean(event.precision, 8)} needs no loss scale"
