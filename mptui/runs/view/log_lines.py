"""What the log says of each event: one line, in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mptui import format as fmt
from mptui.events import (
    Advice,
    Alert,
    CheckpointSaved,
    Diagnosed,
    EpochFinished,
    Event,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Recovered,
    Resumed,
    RunFinished,
    RunStarted,
    StepSkipped,
    Validated,
    Warned,
)
from mptui.runs.view.labels import PHASE_WORDS, shown
from mptui.text import clean

Tone = Literal["plain", "quiet", "good", "warn", "bad"]


@dataclass(slots=True)
class LogLine:
    """A line of the log; `text` is clean, and grows where the line follows a command."""

    time: float
    text: str
    tone: Tone = "plain"


def told(event: Event) -> list[LogLine]:
    """Return the lines that `event` adds to the log: none for figures, which the panels show."""
    return [LogLine(event.time, clean(text), tone) for text, tone in _told(event)]


def _told(event: Event) -> list[tuple[str, Tone]]:
    match event:
        case RunStarted():
            return _run_started(event)
        case PhaseChanged(phase="scanning" | "preparing" | "warming_up" | "compiling"):
            word = PHASE_WORDS.get(event.phase, event.phase)
            usual = f", about {fmt.duration(event.expected_s)} the last time" if event.expected_s else ""
            return [(f"{word} {event.detail}".rstrip() + usual, "quiet")]
        case EpochFinished():
            return [(_epoch_finished(event), "good" if event.best else "plain")]
        case CheckpointSaved():
            cost = f"{fmt.size(event.size_bytes)} in {event.seconds:.1f} s"
            return [(f"checkpoint saved ({event.reason}), {cost}", "quiet")]
        case RunFinished():
            return _run_finished(event)
        case _:
            return _incident(event)


def _incident(event: Event) -> list[tuple[str, Tone]]:
    match event:
        case StepSkipped():
            return [(_skipped(event), "warn")]
        case Advice():
            tip = f" (a takes {event.setting})" if event.setting else ""
            return [(f"advice: {event.message}{tip}", "plain")]
        case Alert():
            return [(event.message, "good" if event.over else "bad")]
        case Diagnosed():
            return [(_diagnosed(event), "warn"), *[(f"try: {tip}", "plain") for tip in event.advice[:2]]]
        case Recovered():
            return [(f"{event.problem}: {event.action}", "warn")]
        case PresetSwitched():
            return [(_switched(event), "plain")]
        case PrecisionChanged():
            change = f"{event.previous or fmt.UNKNOWN} → {event.precision}"
            return [(f"precision {change}: {event.reason}", "warn")]
        case Warned():
            return [(event.message, "warn")]
        case Paused():
            return [(f"paused at step {event.step:,}", "plain")]
        case Resumed():
            return [("going on", "plain")]
        case _:
            return []


def _switched(event: PresetSwitched) -> str:
    if event.undone:
        words = f"switch taken back: {event.profile} at step {event.step:,}"
    elif event.previous == event.profile:
        words = f"changed at step {event.step:,}"
    else:
        words = f"preset {event.previous} → {event.profile} at step {event.step:,}"
    parts = [f"{key} {' → '.join(values)}" for key, values in event.changes.items()]
    parts[:0] = rate_words(event.lr, event.batch, event.ramp_steps)
    return f"{words}: {', '.join(parts)}" if parts else words


def rate_words(lr: Sequence[float], batch: Sequence[int], ramp_steps: int) -> list[str]:
    """What changes of the effective learning rate and batch, each before and after."""
    words = []
    if len(lr) == 2 and lr[0] != lr[1]:
        ramp = f" in {ramp_steps} steps" if ramp_steps else ""
        words.append(f"effective lr {lr[0]:.3g} → {lr[1]:.3g}{ramp}")
    if len(batch) == 2 and batch[0] != batch[1]:
        words.append(f"effective batch {batch[0]:,} → {batch[1]:,}")
    return words


def _run_started(event: RunStarted) -> list[tuple[str, Tone]]:
    images = f"{event.train_samples:,} + {event.val_samples:,} images"
    lines: list[tuple[str, Tone]] = [
        (f"{event.model}, {fmt.short(event.parameters)} parameters, on {event.dataset}: {images}", "plain"),
        (f"precision {event.precision}: {event.precision_reason}", "quiet"),
    ]
    if event.resumed_from_step is not None:
        lines.append((f"resumed at step {event.resumed_from_step:,}", "plain"))
    return lines + [(note, "quiet") for note in event.notes]


def _epoch_finished(event: EpochFinished) -> str:
    words = [f"epoch {event.epoch}", f"train {fmt.figure(event.train_loss)}"]
    if event.val_loss is not None:
        words.append(f"val {fmt.figure(event.val_loss)}")
    words += metric_words(event.val_metrics or event.train_metrics)[:1]
    return "  ".join([*words, "✓ best"] if event.best else words)


def validated(event: Validated) -> LogLine:
    """Return the line of a validation that was asked for: those of an epoch are told with the epoch."""
    words = [f"validated  val {fmt.figure(event.loss)}", *metric_words(event.metrics)]
    return LogLine(event.time, clean("  ".join(words)), "good" if event.best else "plain")


def metric_words(metrics: dict[str, float]) -> list[str]:
    """Name each metric beside its value: `top-1 76.4 %`."""
    words = []
    for name, value in metrics.items():
        place = shown(name)
        words.append(f"{place.word or name} {fmt.percent(value) if place.fraction else fmt.figure(value)}")
    return words


def _skipped(event: StepSkipped) -> str:
    steps = "1 step" if event.count == 1 else f"{event.count:,} steps"
    words = f"{steps} skipped: gradients not finite"
    return words if event.loss_scale is None else f"{words}; loss scale now {event.loss_scale:,.0f}"


def _diagnosed(event: Diagnosed) -> str:
    place = " ".join(word for word in (event.where, event.layer, event.operation) if word)
    words = f"{event.problem}: {'first in ' + place if place else 'not seen again'}"
    return f"{words}; {event.detail}" if event.detail else words


def _run_finished(event: RunFinished) -> list[tuple[str, Tone]]:
    tone: Tone = "good" if event.exit_code == 0 else "bad"
    lines: list[tuple[str, Tone]] = [(f"{event.status} after {fmt.duration(event.seconds)}", tone)]
    lines += [(line, tone) for line in event.message.splitlines()]
    return [*lines, *((line, "plain") for line in event.hint.splitlines())]
