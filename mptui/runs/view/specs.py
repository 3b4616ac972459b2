"""What each event means to view, log, console, summary and trackers: an `EventSpec` an event."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from mptui import text as fmt
from mptui.events import (
    HARMFUL_THROTTLING,
    Advice,
    Alert,
    CheckpointSaved,
    CommandAnswered,
    DeviceSample,
    Diagnosed,
    EpochFinished,
    EpochStarted,
    Event,
    Forked,
    ImagesGenerated,
    LayersThawed,
    LengthPlanned,
    LossScale,
    MemorySample,
    Numerics,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Progress,
    RanksSampled,
    Recovered,
    Resumed,
    RunFinished,
    RunStarted,
    Step,
    StepSkipped,
    Suspended,
    Validated,
    Warned,
    from_record,
)
from mptui.registry.commands import COMMANDS
from mptui.registry.names import SIXTEEN_BIT, SampleKind
from mptui.registry.tasks import TASKS, VAL_LOSS, metric_spec, metric_word
from mptui.runs.view import doubts
from mptui.runs.view.state import OPEN_COMMANDS, ChartBest, OpenAlert, ViewState
from mptui.runs.view.words import (
    DEVICE,
    GRADIENT_NORM,
    LOSS,
    LR,
    MEMORY,
    PHASE_WORDS,
    TRAIN,
    VALIDATION,
    LogLine,
    Tone,
    metric_words,
    ranks_words,
    rate_words,
    time_words,
)
from mptui.text import clean

# Specification of a kind of event, for all readers of events
# -----------------------------------------------------------

E = TypeVar("E", bound=Event)


def _nothing(*_: object) -> tuple[()]:
    """Do nothing and return nothing, for readers that ignore a kind of event."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec(Generic[E]):
    """One kind of event, and what its readers do with it; by default only the state on screens changes.

    Args:
        event: The event's class; its `kind` is the name in `events.jsonl`.
        handle: Updates the state on screens.
        log_lines: Returns the lines for the log of the live screen.
        console_lines: Returns the lines for a console without bars.
        summarize: Updates the document of summary.json.
        scalars: Returns the values for trackers, by name; None is omitted.
        thinned: Which of many such events are returned when a long journal is read in blocks: some of them,
            the last one, or none.
        shown_at_once: Whether the live screen draws it at once; otherwise with the next due drawing.
        is_progress: Whether the watchdog counts it as progress.
        moves_step: Whether the run is at the step of the event, which of a save or a sample may be earlier.
    """

    event: type[E]
    handle: Callable[[ViewState, E], object]
    log_lines: Callable[[E], Iterable[tuple[str, Tone]]] = _nothing
    console_lines: Callable[[E], Sequence[str]] = _nothing
    summarize: Callable[[dict[str, Any], E], object] = _nothing
    scalars: Callable[[E], Iterable[tuple[str, float | None]]] = _nothing
    thinned: Literal["some", "last", "none"] = "some"
    shown_at_once: bool = True
    is_progress: bool = True
    moves_step: bool = True


# Epochs, steps, validations, checkpoints, and the device
# -------------------------------------------------------

_NONE_APPLIED = "no step was applied"

_LONGEST_GAP_S = 10.0
"""Seconds between two samples of the device that the power is integrated over."""

THROTTLED, SETTLED_S = "throttled", 10.0
"""Code of the alert, and the seconds of reduced clocks before it begins, and of full ones before it ends."""


def _start_epoch(view: ViewState, event: EpochStarted) -> None:
    view.epoch = event.epoch
    view.epochs = event.epochs
    for history in view.by_epoch.values():
        history.branch_off(event.epoch - 1)
    _count_steps(view, event)
    view.pace.began_epoch(event)
    view.enter(event, "training")


def _count_steps(view: ViewState, event: EpochStarted) -> None:
    """Count the steps of the run in the batch that is in force now."""
    done = (event.epoch - 1) * event.steps + event.first_step
    total, run = event.total_steps, view.started
    if total is None:  # of an older journal, whose run may have been resumed with another batch
        total = event.step + event.epochs * event.steps - done
        if run is not None and run.total_steps < run.epochs * run.steps_per_epoch:  # by training.max_steps
            total = min(total, run.total_steps)
    view.total_steps = total
    view.steps_per_epoch = event.steps
    view.steps_offset = done - event.step


def _plan_length(view: ViewState, event: LengthPlanned) -> None:
    view.epochs, view.total_steps = event.epochs, event.total_steps
    view.plan(event.planned_lr)


def _summarize_length(document: dict[str, Any], event: LengthPlanned) -> None:
    document["total_steps"] = event.total_steps


def _summarize_epoch_start(document: dict[str, Any], event: EpochStarted) -> None:
    if event.total_steps is not None:
        document["total_steps"] = event.total_steps


def _thaw(view: ViewState, event: LayersThawed) -> None:
    view.mark(event, "thawed")


def _thaw_words(event: LayersThawed) -> str:
    return f"layers thawed: {event.trained:,} of {event.parameters:,} parameters are trained"


def _step(view: ViewState, event: Step) -> None:
    if view.phase != "training":
        view.enter(event, "training")
    view.latest = event
    view.epoch = event.epoch
    if event.skipped_steps > view.skipped_steps:
        view.skipped_steps = event.skipped_steps
        view.last_skip = event.step
    elif not event.nonfinite:
        view.skip_streak = 0
        view.end_alerts(SKIPPED)
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
    words += [f"{metric_word(name)}: {value:.4f}" for name, value in list(event.metrics.items())[:1]]
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
    view.pace.interrupted()
    view.record(LOSS, VALIDATION, event.step, event.loss)
    view.record_metrics(event.step, event.metrics, VALIDATION)
    if event.best:
        view.timeline.happen("best")
        view.end_alerts("plateau")
    if (best := _bests(view.best, event)) != view.best:
        view.improve(best)
    _judge(view, event)
    if "validate" in view.commands:  # the validation of an epoch is in the line of the epoch
        words = [f"validated  val {fmt.figure(event.loss)}", *metric_words(event.metrics)[:2]]
        view.write_log(event, [("  ".join(words), "good" if event.best else "plain")])


def _judge(view: ViewState, event: Validated) -> None:
    """Begin or end the alerts on a loss that has exploded, and on an accuracy at the level of chance."""
    lowest, best = view.best.get(LOSS), view.best.get(metric_spec(event.primary).chart)
    phrases = {doubts.VAL_LOSS: doubts.exploded(event.loss, None if lowest is None else lowest.value)}
    if view.started is not None and event.epoch >= doubts.CHANCE_EPOCHS:
        value = event.metrics.get(event.primary) if best is None else best.value
        known = {"classes": len(view.started.classes), "samples": view.started.val_samples}
        phrases[doubts.CHANCE] = doubts.at_chance(event.primary, value, **known)
    for code, phrase in phrases.items():
        is_open = any(alert.code == code for alert in view.alerts)
        if not phrase:
            view.end_alerts(code)
        elif not is_open:
            view.open_alert(event, code, f"{phrase}: {doubts.REMEDIES[code]}", "warn")


def _bests(known: dict[str, ChartBest], event: Validated) -> dict[str, ChartBest]:
    """Return the best of each chart after a validation: the lowest loss, the metrics of the best epoch."""
    best = dict(known)
    if event.best:
        best = {LOSS: known[LOSS]} if LOSS in known else {}
        for name in sorted(event.metrics, key=lambda name: name != event.primary):
            value = event.metrics[name]
            best.setdefault(metric_spec(name).chart, ChartBest(event.step, value, event.epoch))
    lowest = known.get(LOSS)
    if math.isfinite(event.loss) and (lowest is None or event.loss < lowest.value):
        best[LOSS] = ChartBest(event.step, event.loss, event.epoch)
    return best


def _summarize_validation(document: dict[str, Any], event: Validated) -> None:
    document["loss_terms"] = event.loss_terms
    lowest = document.get("lowest_val_loss")
    if math.isfinite(event.loss) and (lowest is None or event.loss < lowest):
        document["lowest_val_loss"] = event.loss
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
    elif event.what == "data":
        view.data_pictures = event
    else:
        view.images = event


def _image_words(event: ImagesGenerated) -> list[str]:
    """Describe images that the network has made; pictures of predictions are usual, unless they are lost."""
    if event.what == "data":
        return []
    if event.what == "predictions":
        return [] if event.path else ["the pictures of the validation could not be written"]
    return [f"{event.images:,} images made in {event.seconds:.1f} s: {event.path or 'not written'}"]


def _finish_epoch(view: ViewState, event: EpochFinished) -> None:
    view.epoch = event.epoch
    view.epochs = event.epochs
    view.pace.finished_epoch()
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
    train = [f"loss {event.train_loss:.4f}", *_figures(event.train_metrics)]
    if event.samples_trained == 0:
        train = [_NONE_APPLIED]
    line = f"Epoch {event.epoch}/{event.epochs}  train: {' '.join(train[:2])}"
    if event.val_loss is not None:
        val = [f"loss {event.val_loss:.4f}", *_figures(event.val_metrics)]
        line += f"  val: {' '.join(val[:3])}"
    return [f"{line}{_epoch_time(event)}{'  ✓ best' if event.best else ''}"]


def _epoch_time(event: EpochFinished) -> str:
    """Describe the speed of an epoch and its time, each in the time that it is of."""
    whole = f"{event.seconds:.1f} s"
    if event.samples_per_second is None:
        return f"  {whole}"
    rate = f"  {event.samples_per_second:.1f} img/s"
    return (
        f"{rate}  {whole}" if event.training_s is None else f"{rate} in {event.training_s:.1f} s of {whole}"
    )


def _figures(metrics: dict[str, float]) -> list[str]:
    return [f"{metric_word(name)} {value:.4f}" for name, value in metrics.items()]


def _summarize_epoch(document: dict[str, Any], event: EpochFinished) -> None:
    document["epochs"] = event.epoch
    document["final"] = {"train_loss": event.train_loss, "val_loss": event.val_loss, **event.val_metrics}


def _epoch_scalars(event: EpochFinished) -> Iterator[tuple[str, float]]:
    yield "epoch/train_loss", event.train_loss
    yield from ((f"epoch/train_{name}", value) for name, value in event.train_metrics.items())


ROUTINE_SAVES = {"epoch", "best", "time", "steps", "compile"}
"""Reasons of checkpoints that a run writes by itself: the timeline leaves them out."""


def _save(view: ViewState, event: CheckpointSaved) -> None:
    """Log the checkpoint; at the end of an epoch, in the line of the epoch."""
    if event.reason == "left":
        view.left_step = event.step
    if event.reason not in ROUTINE_SAVES:
        view.timeline.happen("checkpoint")
    follows_epoch = bool(view.log) and view.log[-1].text.startswith("epoch ")
    if follows_epoch and event.reason in {"epoch", "best"}:
        last = view.log[-1]
        if not last.text.endswith("saved"):
            last.text += ", saved" if last.text.endswith("best") else "  saved"
    else:
        cost = f"{fmt.size(event.size_bytes)} in {event.seconds:.1f} s"
        view.write_log(event, [(f"checkpoint saved ({event.reason}), {cost}", "quiet")])


def _sample(view: ViewState, event: DeviceSample) -> None:
    view.device = event
    view.is_beating = event.clock is not None
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
    EventSpec(event=EpochStarted, handle=_start_epoch, summarize=_summarize_epoch_start),
    EventSpec(
        event=LengthPlanned,
        handle=_plan_length,
        summarize=_summarize_length,
        thinned="last",
        shown_at_once=False,
    ),
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
    EventSpec(event=CheckpointSaved, handle=_save, moves_step=False),
    EventSpec(
        event=DeviceSample,
        handle=_sample,
        summarize=_summarize_sample,
        shown_at_once=False,
        is_progress=False,
        moves_step=False,
    ),
    EventSpec(
        event=MemorySample,
        handle=_sample_memory,
        shown_at_once=False,
        is_progress=False,
        moves_step=False,
    ),
    EventSpec(
        event=RanksSampled,
        handle=_sample_ranks,
        # no line on a console: advice names a slow rank
        thinned="last",
        shown_at_once=False,
        is_progress=False,
        moves_step=False,
    ),
)


# Advice, commands, and switches of the profile
# ---------------------------------------------

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
    asked = f"requested by {clean(event.by, 40)} …" if event.by else "requested …"
    words = {"asked": asked, "taken": f"taken at step {event.step:,}"}.get(event.state, event.state)
    if event.by == "signal" and event.command not in view.commands:  # nobody could write that it was asked
        words = f"{words} by signal"
    if event.detail and event.state != "asked":
        words = f"{words} ({event.detail})"
    line = view.commands.get(event.command)
    if line is None or event.state == "asked":
        if event.detail and event.state == "asked":
            words = f"{event.detail} {words}"
        known = COMMANDS.get(event.command)  # not in the journal of another version
        title = (known and known.title) or event.command
        line = LogLine(event.time, clean(f"{title} {words}"))
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
    view.changed = event.changed or []
    view.compiled = view.compiled and not any(map(_affects_compiled_code, event.changes))
    view.alerts = [
        left for alert in view.alerts if (left := _without_offer(alert, event.changes)) is not None
    ]
    if view.started is not None:
        view.started = _with_changes(view.started, event.changes)
    if event.planned_lr:
        view.plan(event.planned_lr)
    if event.changes:
        view.pace.restart()
    if event.undone:
        _undo(view, event)
    if event.undone or event.changes:  # a name alone, of the same settings, is nothing to undo
        view.undo_step, view.undo_to = view.left_step if event.undone else event.step, event.previous
        view.is_undone = view.has_left = event.undone and view.left_step is not None
        view.left_step = None
    if event.undone or event.changes or event.previous != event.profile:
        view.mark(event, _switch_label(event))
        view.timeline.happen("switch")


def _undo(view: ViewState, event: PresetSwitched) -> None:
    """Go back to the branch of before a switch, or to that which the last undo has left."""
    _leave_branch(view, event, "undo", returns=view.is_undone)
    if view.has_left:
        view.return_to_abandoned(event.step)
    elif view.is_undone and view.split_step is not None:  # its curves are gone: a gap after the split
        view.go_back(view.split_step)
    else:
        view.go_back(event.step)
        view.split_step = event.step


def _leave_branch(view: ViewState, event: Event, ended: str, *, returns: bool = False) -> None:
    """Begin another branch if there are later steps to leave, or if the run `returns` to one it has left."""
    if event.step < view.last_step or returns:
        view.leave_branch(event, ended)


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
    words += f" by {event.by}" if event.by else ""
    parts = rate_words(event.lr, event.batch, event.ramp_steps)
    parts += [f"{key} {' → '.join(values)}" for key, values in event.changes.items()]
    return [(f"{words}: {', '.join(parts)}" if parts else words, "plain")]


def _summarize_switch(document: dict[str, Any], event: PresetSwitched) -> None:
    document |= {"profile": event.profile, "changed": event.changed or []}


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
        moves_step=False,
    ),
    EventSpec(
        event=PresetSwitched,
        handle=_switch,
        log_lines=_switch_log,
        summarize=_summarize_switch,
    ),
)


# Start, phases, pauses and end of a run
# --------------------------------------

_LOGGED_PHASES = {"scanning", "preparing", "warming_up", "compiling"}
_AS_WANTED = {"completed", "stopped"}
"""Statuses of an end that needs nobody."""


def _start(view: ViewState, event: RunStarted) -> None:
    if view.started is None and view.forked is None:
        view.branch_start, view.branch_began = event.step, event.time
    if view.started is not None:
        _leave_branch(view, event, "resume")
        view.go_back(event.step)
        view.timeline.happen("restart")
    view.started = event
    view.finished = None
    view.ranks = None
    view.alerts = [alert for alert in view.alerts if not alert.lasts]
    view.throttled_since = view.throttled_until = None
    view.profile = event.profile
    view.changed = event.changed
    view.precision = event.precision
    view.paused = False
    view.epochs = event.epochs
    view.total_steps = event.total_steps
    view.steps_per_epoch = event.steps_per_epoch
    view.pace.restart()
    view.plan(event.planned_lr)
    view.enter(event, "starting")


def _fork(view: ViewState, event: Forked) -> None:
    view.forked = event
    view.branch_start, view.branch_began = event.step, event.time
    view.profile = event.profile
    view.changed = event.changed


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
        "changed": event.changed,
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
        "total_steps": event.total_steps,
        "precision": {
            "requested": event.precision_requested,
            "used": event.precision,
            "reason": event.precision_reason,
        },
    }


def _enter_phase(view: ViewState, event: PhaseChanged) -> None:
    view.compiled |= event.phase == "compiling"
    view.paused &= event.phase != "restarting"
    view.is_beating &= event.phase not in {"starting", "restarting"}
    if event.phase == "starting":  # it says what is ahead once it has begun
        view.pace.restart()
    if view.is_preparing:
        view.note_preparation(event)
    view.enter(event, event.phase)
    view.phase_expected_s = event.expected_s


def _phase_log(event: PhaseChanged) -> list[tuple[str, Tone]]:
    found: list[tuple[str, Tone]] = [(event.found, "quiet")] if event.found else []
    if event.phase not in _LOGGED_PHASES or (event.found and not event.detail):
        return found
    word = PHASE_WORDS.get(event.phase, event.phase)
    return [*found, (f"{word} {event.detail}".rstrip() + expected_time(event), "quiet")]


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
        view.progress = None
        view.phase_since = event.time
    else:
        view.progress = event if event.total > 0 else None


def _pause(view: ViewState, event: Paused) -> None:
    view.paused = True
    view.paused_since, view.paused_by = event.time, clean(event.by, 40)
    view.pace.waited()


def _pause_log(event: Paused) -> list[tuple[str, Tone]]:
    by = f" by {event.by}" if event.by else ""
    return [(f"paused at step {event.step:,}{by}", "plain")]


def _lose_time(view: ViewState, _: Suspended) -> None:
    view.pace.waited()


def _lost_time_words(event: Suspended) -> str:
    return f"suspended for {fmt.duration(event.seconds)}: the process, or the machine, did not run"


def _continue(view: ViewState, _: Resumed) -> None:
    view.paused = False
    view.compiled = False
    view.pace.waited()


def _finish(view: ViewState, event: RunFinished) -> None:
    view.finished = event
    view.paused = view.is_beating = False
    view.alerts = []
    if event.status not in _AS_WANTED:
        status, message = event.status.replace("_", " "), "".join(event.message.splitlines()[:1])
        words = [message] if status in message.partition(":")[0] else [status, *filter(None, [message])]
        view.open_alert(event, event.status, ": ".join(words), "bad")
    elif event.concerns:
        view.end_alerts(*doubts.REMEDIES)  # it has them
        view.open_alert(event, "doubtful", "; ".join(event.concerns), "warn")
    view.enter(event, "finished")


def _end_log(event: RunFinished) -> list[tuple[str, Tone]]:
    tone: Tone = "good" if event.exit_code == 0 else "bad"
    lines: list[tuple[str, Tone]] = [
        (f"{event.status} after {time_words(event.seconds, event.total_s)}", tone)
    ]
    lines += [(f"doubtful: {words}", "warn") for words in event.concerns]
    lines += [(line, tone) for line in event.message.splitlines()]
    return [*lines, *((line, "plain") for line in event.hint.splitlines())]


LIFECYCLE = (
    EventSpec(
        event=Forked,
        handle=_fork,
        log_lines=lambda event: [(f"forked from {event.parent} at step {event.step:,}", "plain")],
        # not in the summary: the fork has begun with it
    ),
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
        log_lines=_pause_log,
    ),
    EventSpec(
        event=Suspended,
        handle=_lose_time,
        log_lines=lambda event: [(_lost_time_words(event), "warn")],
        console_lines=lambda event: [_lost_time_words(event)],
        is_progress=False,
        moves_step=False,
    ),
    EventSpec(
        event=Resumed,
        handle=_continue,
        log_lines=lambda _: [("training continues", "plain")],
    ),
    EventSpec(
        event=RunFinished,
        handle=_finish,
        log_lines=_end_log,
    ),
)


# Precision, loss scale, skipped steps and numerics
# -------------------------------------------------


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


SKIPPED, MANY_SKIPPED = "skipped_steps", 20
"""Code of the alert, and the steps in a row from which it begins; a search for a loss scale skips fewer."""

_SKIPPED_WORDS = f"nothing is learned: in {MANY_SKIPPED} steps or more in a row gradients were not finite"


def _skip(view: ViewState, event: StepSkipped) -> None:
    """Count the skipped steps; consecutive ones share a line of the log."""
    view.skipped_steps = event.total
    view.skip_streak = event.streak
    view.last_skip = event.step
    if event.streak >= MANY_SKIPPED and not any(alert.code == SKIPPED for alert in view.alerts):
        view.open_alert(event, SKIPPED, _SKIPPED_WORDS, "bad")
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


# Warnings, alerts, diagnoses and recoveries
# ------------------------------------------

LIST_LIMIT = 100
"""Largest number of entries of a list in summary.json: the first half, and the latest."""

_DISK, _DIVERGENCE = "disk", "divergence"
"""Problems of `Recovered`: the second goes back to an earlier step."""
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
    where = "" if event.where in event.layer.split() else event.where
    place = " ".join(word for word in (where, event.layer, event.operation) if word)
    words = f"{event.problem}: {'first in ' + place if place else 'not reproduced'}"
    line = f"{words}; {event.detail}" if event.detail else words
    tips = (tip if tip.startswith("try ") else f"try: {tip}" for tip in event.advice[:2])
    return [(line, "warn"), *((tip, "plain") for tip in tips)]


def _recover(view: ViewState, event: Recovered) -> None:
    if event.problem == _DIVERGENCE:
        _leave_branch(view, event, "rollback")
        view.go_back(event.step)
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
        moves_step=False,
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


# All kinds of events
# -------------------
# To add a kind, define its class in `mptui/events/` and its `EventSpec` here or in a file beside this one.

EVENTS: dict[str, EventSpec[Any]] = {
    spec.event.kind: spec for spec in (*LIFECYCLE, *TRAINING, *PRECISION, *RECOVERY, *CONTROL)
}


def event_of(record: Mapping[str, Any]) -> Event | None:
    """Convert a record of a journal to its event; None for an unknown kind or a damaged record."""
    spec = EVENTS.get(str(record.get("event")))
    return None if spec is None else from_record(record, spec.event)
