"""Epochs, steps, validations, checkpoints, and the device."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from mptui import format as fmt
from mptui.events import (
    HARMFUL_THROTTLING,
    CheckpointSaved,
    DeviceSample,
    EpochFinished,
    EpochStarted,
    Event,
    ImagesGenerated,
    LayersThawed,
    MemorySample,
    RanksSampled,
    RunStarted,
    Step,
    Validated,
)
from mptui.registry.tasks import VAL_LOSS
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.labels import DEVICE, GRADIENT_NORM, LOSS, LR, MEMORY, TRAIN, VALIDATION, shown
from mptui.runs.view.log_lines import Tone, metric_words
from mptui.runs.view.view_state import ViewState
from mptui.text import clean

_NONE_APPLIED = "no step was applied"

_LONGEST_GAP_S = 10.0
"""Seconds between two samples of the device that the power is integrated over."""

THROTTLED, SETTLED_S = "throttled", 10.0
"""Code of the alert, and the seconds of reduced clocks before it begins, and of full ones before it ends."""


def _start_epoch(view: ViewState, event: EpochStarted) -> None:
    view.epoch, view.epochs = event.epoch, event.epochs
    if view.started is not None and event.steps != view.started.steps_per_epoch:
        view.started = _with_steps(view.started, event)
    view.enter(event, "training")


def _with_steps(started: RunStarted, event: EpochStarted) -> RunStarted:
    """Update the number of steps after the batch size has changed."""
    total = event.step + (event.epochs - event.epoch + 1) * event.steps - event.first_step
    if started.total_steps < started.epochs * started.steps_per_epoch:  # limited by training.max_steps
        total = min(total, started.total_steps)
    return replace(started, steps_per_epoch=event.steps, total_steps=total)


def _thaw(view: ViewState, event: LayersThawed) -> None:
    view.mark(event, "thawed")


def _thaw_words(event: LayersThawed) -> str:
    return f"layers thawed: {event.trained:,} of {event.parameters:,} parameters are trained"


def _step(view: ViewState, event: Step) -> None:
    if view.phase != "training":
        view.enter(event, "training")
    view.latest, view.epoch = event, event.epoch
    if event.skipped_steps > view.skipped_steps:
        view.skipped_steps, view.last_skip = event.skipped_steps, event.step
    elif not event.nonfinite:
        view.skip_streak = 0
    view.pace.stepped(event)
    if view.alerts:
        view.end_alerts("hang", "rank_silent")
    loss = view.history(LOSS, TRAIN)
    if loss is not None:
        loss.append(event.step, event.loss, event.loss_min, event.loss_max)
        if event.nonfinite:
            loss.append(event.step, float("nan"))
    view.record_metrics(event.step, event.metrics, TRAIN)
    view.record(LR, "rate", event.step, event.lr)
    view.record(GRADIENT_NORM, "norm", event.step, event.grad_norm)
    view.record("loss scale", "scale", event.step, event.loss_scale)
    if event.loss_scale is not None:
        view.timeline.scaled(event.loss_scale)
    view.record("speed", "images/s", event.step, event.samples_per_second)


def step_words(event: Step, steps: int) -> str:
    """Format a step for a log: `epoch 1 step 5/10  loss: 2.3021  lr: 1.00e-05  128.1 img/s  4.0 it/s`.

    Args:
        event: The step.
        steps: Steps of the epoch; 0: unknown.
    """
    words = [f"epoch {event.epoch} step {event.epoch_step}" + (f"/{steps}" if steps else "")]
    words += [f"loss: {event.loss:.4f}", f"lr: {event.lr:.2e}"]
    words += [f"{name}: {value:.4f}" for name, value in list(event.metrics.items())[:1]]
    if event.samples_per_second is not None:
        words.append(f"{event.samples_per_second:.1f} img/s")
    if event.step_time_s:
        words.append(f"{1 / event.step_time_s:.2f} it/s")
    return "  ".join(words)


def _summarize_step(document: dict[str, Any], event: Step) -> None:
    document["optimizer_steps"] = event.step
    document["samples_seen"] = event.samples_seen
    document["skipped_steps"] = event.skipped_steps


def _step_scalars(event: Step) -> Iterator[tuple[str, float | None]]:
    yield "train/loss", event.loss
    yield "train/lr", event.lr
    yield "train/grad_norm", event.grad_norm
    yield "train/loss_scale", event.loss_scale
    yield "train/skipped_steps", float(event.skipped_steps)
    yield "speed/samples_per_second", event.samples_per_second
    yield "speed/steps_per_second", 1 / event.step_time_s if event.step_time_s else None
    yield "speed/data_wait_fraction", event.data_wait_fraction


def _validate(view: ViewState, event: Validated) -> None:
    view.validation = event
    view.pace.validation_s = event.seconds
    view.pace.interrupted()
    view.record(LOSS, VALIDATION, event.step, event.loss)
    view.record_metrics(event.step, event.metrics, VALIDATION)
    if event.best:
        view.timeline.happen("best")
        view.end_alerts("plateau")
        view.best = {LOSS: (event.step, event.loss)}
        for name, value in event.metrics.items():
            view.best.setdefault(shown(name).chart, (event.step, value))
    if "validate" in view.commands:  # the validation of an epoch is in the line of the epoch
        words = [f"validated  val {fmt.figure(event.loss)}", *metric_words(event.metrics)[:2]]
        view.write_log(event, [("  ".join(words), "good" if event.best else "plain")])


def _summarize_validation(document: dict[str, Any], event: Validated) -> None:
    document["loss_terms"] = event.loss_terms
    if not event.best:
        return
    metric = event.primary or next(iter(event.metrics), None)
    value = event.loss if metric == VAL_LOSS else event.metrics.get(str(metric))
    document["best"] = {"epoch": event.epoch, "metric": metric, "value": value}
    if event.per_class:
        document["best"]["per_class"] = event.per_class


def _validation_scalars(event: Validated) -> Iterator[tuple[str, float]]:
    yield "val/loss", event.loss
    yield from ((f"val/{name}", value) for name, value in event.metrics.items())


def _generate(view: ViewState, event: ImagesGenerated) -> None:
    view.pace.interrupted()
    if event.what == "predictions":
        view.pictures = event
    else:
        view.images = event


def _image_words(event: ImagesGenerated) -> list[str]:
    """Describe images that the network has made; pictures of predictions are usual, unless they are lost."""
    if event.what == "predictions":
        return [] if event.path else ["the pictures of the validation could not be written"]
    return [f"{event.images:,} images made in {event.seconds:.1f} s: {event.path or 'not written'}"]


def _finish_epoch(view: ViewState, event: EpochFinished) -> None:
    view.epoch, view.epochs = event.epoch, event.epochs
    view.pace.interrupted()
    losses = {"train_loss": event.train_loss, "val_loss": event.val_loss}
    for name, value in {**losses, **event.val_metrics}.items():
        if value is not None:
            view.record_epoch(clean(name, 24), event.epoch, value)


def _epoch_log(event: EpochFinished) -> list[tuple[str, Tone]]:
    trained = _NONE_APPLIED if event.samples_trained == 0 else f"train {fmt.figure(event.train_loss)}"
    words = [f"epoch {event.epoch}", trained]
    if event.val_loss is not None:
        words.append(f"val {fmt.figure(event.val_loss)}")
    words += metric_words(event.val_metrics or event.train_metrics)[:1]
    return [("  ".join([*words, "✓ best"]), "good")] if event.best else [("  ".join(words), "plain")]


def epoch_lines(event: EpochFinished) -> list[str]:
    """Describe an epoch in one line: training, then validation."""
    train = [f"loss {event.train_loss:.4f}", *(f"{k} {v:.4f}" for k, v in event.train_metrics.items())]
    if event.samples_trained == 0:
        train = [_NONE_APPLIED]
    line = f"Epoch {event.epoch}/{event.epochs}  train: {' '.join(train[:2])}"
    if event.val_loss is not None:
        val = [f"loss {event.val_loss:.4f}", *(f"{k} {v:.4f}" for k, v in event.val_metrics.items())]
        line += f"  val: {' '.join(val[:3])}"
    rate = "" if event.samples_per_second is None else f"  {event.samples_per_second:.1f} img/s"
    return [f"{line}{rate}  {event.seconds:.1f} s{'  ✓ best' if event.best else ''}"]


def _summarize_epoch(document: dict[str, Any], event: EpochFinished) -> None:
    document["epochs"] = event.epoch
    document["final"] = {"train_loss": event.train_loss, "val_loss": event.val_loss, **event.val_metrics}


def _epoch_scalars(event: EpochFinished) -> Iterator[tuple[str, float]]:
    yield "epoch/train_loss", event.train_loss
    yield from ((f"epoch/train_{name}", value) for name, value in event.train_metrics.items())


def _save(view: ViewState, event: CheckpointSaved) -> None:
    """Log the checkpoint; at the end of an epoch, in the line of the epoch."""
    view.pace.interrupted()
    view.timeline.happen("checkpoint")
    last = view.log[-1] if view.log else None
    if event.reason in {"epoch", "best"} and last is not None and last.text.startswith("epoch "):
        if not last.text.endswith("saved"):
            last.text += ", saved" if last.text.endswith("best") else "  saved"
    else:
        cost = f"{fmt.size(event.size_bytes)} in {event.seconds:.1f} s"
        view.write_log(event, [(f"checkpoint saved ({event.reason}), {cost}", "quiet")])


def _sample(view: ViewState, event: DeviceSample) -> None:
    view.device = event
    view.record(DEVICE, "busy", event.step, event.utilisation)
    if event.utilisation is not None:
        view.timeline.sampled(event.utilisation)
    if event.memory_used is not None and event.memory_total:
        view.record(DEVICE, "memory", event.step, event.memory_used / event.memory_total)
    if view.ranks is None:
        _watch_clocks(view, event, event.throttle)


def _watch_clocks(view: ViewState, event: Event, reasons: Iterable[str]) -> None:
    """Open the alert of clocks that heat or a fault reduces, or end it."""
    harmful = sorted(HARMFUL_THROTTLING.intersection(reasons))
    if harmful:
        view.throttled_until = event.instant
        view.throttled_since = view.throttled_since or event.instant
        known = any(alert.code == THROTTLED for alert in view.alerts)
        if not known and event.instant - view.throttled_since >= SETTLED_S:
            what = f"the clocks of the device are reduced ({', '.join(harmful)})"
            message = f"{what}: check its cooling and power supply"
            view.open_alert(event, THROTTLED, message, "warn")
    elif view.throttled_until is not None and event.instant - view.throttled_until >= SETTLED_S:
        view.throttled_since = view.throttled_until = None
        view.end_alerts(THROTTLED)


def _sample_memory(view: ViewState, event: MemorySample) -> None:
    view.memory = event
    for series in ("peak", "reserved", "process"):
        size = getattr(event, series)
        view.record(MEMORY, series, event.step, None if size is None else size / (1 << 30))


def _sample_ranks(view: ViewState, event: RanksSampled) -> None:
    view.ranks = event
    _watch_clocks(view, event, [reason for row in event.rows for reason in row.throttle])


def _summarize_sample(document: dict[str, Any], event: DeviceSample) -> None:
    """Add the energy since the sample before, at the power of this one; longer gaps are not counted."""
    if event.power_w is None:
        return
    energy = document["energy"]
    seconds = event.instant - energy["until"]
    if 0 < seconds <= _LONGEST_GAP_S:
        energy["watt_hours"] = (energy["watt_hours"] or 0.0) + event.power_w * seconds / 3600
        energy["seconds"] += seconds
    energy["until"] = event.instant


TRAINING = (
    EventSpec(event=EpochStarted, handle=_start_epoch),
    EventSpec(
        event=LayersThawed,
        handle=_thaw,
        log_lines=lambda event: [(_thaw_words(event), "plain")],
        console_lines=lambda event: [_thaw_words(event)],
    ),
    EventSpec(
        event=Step,
        handle=_step,
        # the console prints the figures of a step by itself: every ten seconds, or in its bar
        summarize=_summarize_step,
        scalars=_step_scalars,
        shown_at_once=False,
    ),
    EventSpec(
        event=Validated,
        handle=_validate,
        summarize=_summarize_validation,
        scalars=_validation_scalars,
    ),
    EventSpec(
        event=EpochFinished,
        handle=_finish_epoch,
        log_lines=_epoch_log,
        console_lines=epoch_lines,
        summarize=_summarize_epoch,
        scalars=_epoch_scalars,
    ),
    EventSpec(
        event=ImagesGenerated,
        handle=_generate,
        log_lines=lambda event: [(words, "plain") for words in _image_words(event)],
        console_lines=_image_words,
    ),
    EventSpec(event=CheckpointSaved, handle=_save),
    EventSpec(
        event=DeviceSample,
        handle=_sample,
        summarize=_summarize_sample,
        shown_at_once=False,
        is_progress=False,
    ),
    EventSpec(
        event=MemorySample,
        handle=_sample_memory,
        shown_at_once=False,
        is_progress=False,
    ),
    EventSpec(
        event=RanksSampled,
        handle=_sample_ranks,
        # no line on a console: advice names a slow rank
        thinned="last",
        shown_at_once=False,
        is_progress=False,
    ),
)
