"""Begin and end of an epoch."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterator

import torch

from mptui.data.batch import Window
from mptui.engine.checkpoint import snapshots
from mptui.engine.compile import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.evaluate import ValidationResult, evaluate
from mptui.engine.guards.memory import compute_in_pieces
from mptui.engine.hooks import Hook
from mptui.engine.job import total_steps
from mptui.engine.micro_batches import Recovery, release
from mptui.errors import DataError, DivergedError
from mptui.events import EpochFinished, EpochStarted, LayersThawed
from mptui.models.zoo import parameter_count
from mptui.registry.tasks import VAL_LOSS, metric_word

# Begin and end of an epoch: validation, best metric, events, checkpoints
# -----------------------------------------------------------------------

EPOCHS = "training.epochs"
MAX_STEPS = "training.max_steps"
TIME = "training.time"
PATIENCE = "training.early_stopping_patience"

MEANINGFUL = 100.0
"""A validation whose loss exceeds this multiple of chance level is never the best."""

STATISTICS_BATCHES = 50
"""Training batches from which BatchNorm's statistics are computed anew: as many as the authors of
schedule-free optimizers use."""


def begin_epoch(context: TrainContext) -> None:
    """Thaw the layers that are due, and report that a pass over the data begins or continues."""
    if context.state.frozen_changes:
        context.take_job(context.state.given)
        model = context.model
        counts = {"trained": parameter_count(model, trained=True), "parameters": parameter_count(model)}
        context.emit(LayersThawed(step=context.state.step, **counts))
    context.left_epoch = False
    cursor = context.state.cursor
    context.emit(
        EpochStarted(
            step=context.state.step,
            epoch=cursor.epoch + 1,
            epochs=context.job.config.training.epochs,
            steps=context.parts.steps_per_epoch,
            first_step=cursor.epoch_step,
            total_steps=total_steps(context.job, cursor, context.state.step),
        )
    )


def validate(context: TrainContext) -> ValidationResult:
    """Evaluate the validation set, with the averaged weights if there are any."""
    context.reporter.flush(wait=True)
    checks = begin_validation(context)
    average, compiler = context.parts.average, context.parts.compiler
    if not context.ranks.is_alone:  # each rank has its own statistics
        averaged = average.statistics() if average is not None else ()
        context.ranks.broadcast_buffers([*context.model.buffers(), *averaged])
        context.parts.updater.buffers.refresh()
    in_place = average.in_place() if average is not None else contextlib.nullcontext()
    with in_place, context.parts.replica.full_weights():
        if average is not None and average.own_statistics:
            _recompute_statistics(context)
            context.ranks.broadcast_buffers(context.model.buffers())
        measured = evaluate(
            context.model,
            context.task,
            context.job.val_loader,
            context.parts.precision,
            device=context.device,
            on_progress=context.emit,
            check_stop=lambda: next(checks),
            in_pieces=lambda batch, compute: compute_in_pieces(context, batch, compute),
            outputs_stay=not compiler.static_shapes,
            watch=context.hooks.at(Hook.batch_validated),
            ranks=context.ranks,
        )
    end_validation_batch(context)
    return measured


def report(context: TrainContext, measured: ValidationResult, epoch: int, *, best: bool) -> None:
    """Report the result of a validation in an epoch, from 1."""
    context.emit(measured.event(context.state.step, epoch, best=best))
    for validated in context.hooks.at(Hook.validated):
        validated(measured, epoch, best)


@torch.no_grad()
def _recompute_statistics(context: TrainContext) -> None:
    """Compute BatchNorm's running statistics for the weights in the model, from training batches.

    The statistics of the steps belong to other weights than an average that lags behind: see the caveats of
    the schedule-free optimizers' authors (README of facebookresearch/schedule_free), and "precise BN" (Wu &
    Johnson 2021). Statistics are not used in training, so they stay. Ends the pass over the training data.

    Raises:
        Stopped: From `check_stop`; the statistics are restored.
    """
    norms = context.parts.updater.buffers.norms
    moving = [norm for norm in norms if norm.training and norm.running_mean is not None]
    if not moving:
        return
    momenta = [norm.momentum for norm in moving]
    epoch = context.state.cursor.epoch
    try:
        for norm in moving:
            norm.reset_running_stats()
            norm.momentum = None  # the mean of all batches
        for window in itertools.islice(context.job.train_loader.windows(epoch, 1), STATISTICS_BATCHES):
            context.mailbox.check_stop()
            context.seeds.set(epoch, window.next_sample)
            for batch in window:
                for micro_batch in context.micro_batches.split(batch):
                    # not compiled, for so few batches
                    with context.parts.precision.forward_context(), eagerly(context.model):
                        context.model(*micro_batch.inputs)
        context.parts.updater.buffers.refresh()
    except BaseException:
        context.parts.updater.forget()
        raise
    finally:
        for norm, momentum in zip(moving, momenta, strict=True):
            norm.momentum = momentum
    context.leave_epoch()


def finish_epoch(context: TrainContext, started: float) -> None:
    """Validate, record the best metric, report, and save if a checkpoint is due.

    If `training.max_steps` ends the run in mid-epoch, the cursor and the training metrics stay: a resume with
    more steps continues with the rest of the epoch.

    Args:
        context: Context of a run between two steps.
        started: Time at which the pass over the data began, by `time.perf_counter`.
    """
    if context.read_all_rows():
        return  # the epoch is not over: the run was rolled back
    state, reporter, job = context.state, context.reporter, context.job
    trained, train_metrics = reporter.epoch, state.metrics.compute()
    train_loss = trained.mean_loss()
    measured = validate(context)
    over = not enough_steps(context) or job.train_loader.is_over(state.cursor.sample)
    epoch = state.cursor.epoch + 1
    is_best = state.best.offer(_score(context, measured), epoch, whole=over)
    if over:
        state.cursor.next_epoch()
    else:
        state.cursor.measured_at = state.step
    context.outcome.epochs = epoch
    context.outcome.final = {"train_loss": train_loss, "val_loss": measured.loss, **measured.metrics}
    report(context, measured, epoch, best=is_best)
    context.emit(
        EpochFinished(
            step=state.step,
            epoch=epoch,
            epochs=job.config.training.epochs,
            train_loss=train_loss,
            train_metrics=train_metrics,
            val_loss=measured.loss,
            val_metrics=measured.metrics,
            lr=float(context.parts.updater.lr),
            seconds=time.perf_counter() - started,
            samples_per_second=reporter.epoch_throughput.rate,
            training_s=reporter.epoch_throughput.seconds,
            samples_trained=trained.samples,
            best=is_best,
        )
    )
    for epoch_ends in context.hooks.at(Hook.epoch_ends):
        epoch_ends()
    if over:
        state.metrics.reset()
        reporter.begin_epoch()
    if is_best:
        context.on_best(measured)
        context.saver.offer_best(snapshots.take(state))
    elif context.ranks.broadcast(context.saver.may_save()):
        context.saver.save(snapshots.take(state), "epoch")


def _score(context: TrainContext, measured: ValidationResult) -> float:
    """Return the metric that decides which epoch is best; NaN if the loss shows that it is meaningless.

    The metric of a network whose outputs are NaN or huge may be finite, and even good by chance.
    """
    meaningful = math.isfinite(measured.loss) and measured.loss <= MEANINGFUL * context.task.chance
    found = {VAL_LOSS: measured.loss, **measured.metrics}
    return found.get(context.task.primary, math.nan) if meaningful else math.nan


def enough_steps(context: TrainContext) -> bool:
    """Whether the run has reached `training.max_steps`."""
    limit = context.job.config.training.max_steps
    return limit is not None and context.state.step >= limit


def check_trained(context: TrainContext) -> None:
    """Check at its end that the run has trained on a batch.

    Raises:
        DataError: All batches were left out: they had no targets, or values that are not finite.
        DivergedError: All steps were refused, so that the weights are those of the beginning.
    """
    if context.state.step == 0:
        raise DataError(
            "no step was taken: each batch was left out",
            hint="read the warnings: all targets are ignored, or no image has finite values (data.mean, "
            "data.std)",
        )
    totals = context.reporter.totals
    if totals.applied == 0:
        scale = context.parts.precision.loss_scale()
        lower = "a lower precision.grad_scaler.init_scale, or --precision bf16 or fp32"
        raise DivergedError(
            f"no step was applied: the gradients of all {totals.tried:,} were not finite",
            hint=f"try {lower if scale is not None else 'a lower learning rate (--lr), or --precision fp32'}",
        )


def has_more(context: TrainContext) -> bool:
    """Whether steps are left, or the validation of an epoch that was interrupted; warns of an early stop."""
    ended = ended_by(context)
    if ended is not None and ended[0] == PATIENCE:
        best = context.state.best
        context.warn("early_stop", f"stopped early: {ended[1]} (best {best.value:.4f} in epoch {best.epoch})")
    return ended is None


def ended_by(context: TrainContext) -> tuple[str, str] | None:
    """Return the setting by which a run has ended, and what has reached it; None if it goes on."""
    cursor, training, best = context.state.cursor, context.job.config.training, context.state.best
    if cursor.epoch >= training.epochs:
        return EPOCHS, "1 epoch is trained" if cursor.epoch == 1 else f"{cursor.epoch:,} epochs are trained"
    begun = cursor.epoch_step > 0
    if enough_steps(context):
        unmeasured = begun and cursor.measured_at != context.state.step
        is_asked = training.max_steps == context.state.given.config.training.max_steps
        limit = MAX_STEPS if is_asked else TIME
        return None if unmeasured else (limit, f"{context.state.step:,} steps are taken")
    patience = training.early_stopping_patience
    is_patient = patience is None or best.epochs_since < patience
    if begun or is_patient:
        return None
    return PATIENCE, f"{metric_word(best.metric)} has not improved for {best.epochs_since} epochs"


def warn_if_unscored(context: TrainContext) -> None:
    """Warn at the end of a run if no epoch could be compared with others."""
    best = context.state.best
    if best.epoch == 0 and context.outcome.epochs:
        context.warn(
            "unscored",
            f"no epoch has a usable {metric_word(best.metric)}: its validations were not finite, or far "
            "above chance level; there is no best checkpoint",
        )


# Handles compilation in the loop: it takes minutes in which the training thread sees no stop request
# ---------------------------------------------------------------------------------------------------
# The state is saved before, and the mailbox's way out is open during the compilation: a stop request ends
# the run without the training thread, and nothing is lost.


class CompileFallback(Hook):
    """Turns torch.compile off if it fails."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context

    def failed(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """Continue eagerly, or without CUDA graphs, after an error of the compiler."""
        context = self._context
        gave_up = context.parts.compiler.gave_up_on(error, phase)
        return (lambda: release(context.device)) if gave_up else None


def enter_training(context: TrainContext) -> None:
    """Begin or continue training; if the next step compiles, prepare for that."""
    compiler = context.parts.compiler
    if compiler.active and not compiler.has_run("training"):
        _open_early_exit(context)
        mode, cost = context.job.config.speed.compile, compiler.cost
        context.enter("compiling", detail=mode, expected_s=cost.start_s, known_from=cost.known_from)
        compiler.begin()
    else:
        context.enter("training" if context.state.step else "warming_up")
    context.reporter.restart_clock()


def end_timed_step(context: TrainContext, window: Window, seconds: float) -> None:
    """Record the time of one of the few steps that decide whether compilation pays off.

    That of a short last batch is none of them: it is not compiled.
    """
    if window.size % context.job.train_loader.whole_size:
        return
    if context.parts.compiler.note_step(seconds) and not context.left_epoch:
        context.state.cursor.sample = window.next_sample  # the step is complete, and is saved with the rest
        if not context.read_all_rows():
            enter_training(context)


def end_first_step(context: TrainContext, window: Window) -> None:
    """End a first step of the run, or of its compiled code, unless it had a short last batch alone."""
    context.mailbox.early_exit.close()
    context.parts.compiler.end(ran=window.size >= context.job.train_loader.whole_size)
    context.enter("training")
    context.reporter.restart_clock()


def begin_validation(context: TrainContext) -> Iterator[None]:
    """Enter the first phase of a validation; advance the returned iterator before each of its batches."""
    compiler = context.parts.compiler
    if compiler.active and not compiler.has_run("validating"):
        _open_early_exit(context)
        context.enter("compiling", detail="for validation")
    else:
        context.enter("validating", total=context.job.val_loader.batches)

    def checks() -> Iterator[None]:
        while True:
            context.mailbox.poll()
            yield
            end_validation_batch(context)

    return checks()


def end_validation_batch(context: TrainContext) -> None:
    """End the compilation for validation, after its first batch.

    A short last batch counts as well: of three calls two at least are of compiled code, which record it.
    """
    context.parts.compiler.succeeded("validating")
    if context.phase == "compiling":
        context.mailbox.early_exit.close()
        context.enter("validating", total=context.job.val_loader.batches)


def _open_early_exit(context: TrainContext) -> None:
    context.saver.write_waiting_best(force=True)
    context.saver.save(snapshots.take(context.state), "compile", wait=True)
    if context.parts.compiler.static_shapes:
        # CUDA graphs have memory of their own, for which torch does not free what eager steps have cached
        release(context.device)
    context.mailbox.check_stop()
    context.mailbox.early_exit.open()
