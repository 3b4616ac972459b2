"""The end of an epoch: validate, keep the best, report, save."""

import math
import time
from typing import TYPE_CHECKING

from mptui.engine.checkpoint import snapshots
from mptui.engine.progress import Cursor
from mptui.engine.reporting.reporter import EpochSums
from mptui.events import EpochFinished, Warned

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


def finish_epoch(trainer: "Trainer") -> None:
    """Validate, keep the best, report, and save if it is time.

    Where `training.max_steps` ends the run in the middle of an epoch, the cursor and the training metrics
    stay where they are: a resume with more steps goes on with the rest of the epoch.
    """
    if trainer.guards.settle():
        return  # the epoch is not over: the run is back in its middle, or in an earlier one
    train_loss, train_metrics = trainer.reporter.epoch.mean_loss(), trainer.metrics.compute()
    measured = trainer.validate()
    over = not trainer.enough() or trainer.job.train_loader.is_over(trainer.cursor.sample)
    epoch = trainer.cursor.epoch + 1
    # the metric of a network whose outputs are NaN may be finite: the loss is not
    value = measured.metrics.get(trainer.task.primary, math.nan) if math.isfinite(measured.loss) else math.nan
    is_best = trainer.best.offer(value, epoch, whole=over)
    if over:
        trainer.cursor = Cursor(epoch=epoch)
    else:
        trainer.cursor.measured_at = trainer.step
    trainer.outcome.epochs = epoch
    trainer.outcome.final = {"train_loss": train_loss, "val_loss": measured.loss, **measured.metrics}
    trainer.emit(measured.event(trainer.step, epoch, best=is_best))
    trainer.emit(
        EpochFinished(
            step=trainer.step,
            epoch=epoch,
            epochs=trainer.job.config.training.epochs,
            train_loss=train_loss,
            train_metrics=train_metrics,
            val_loss=measured.loss,
            val_metrics=measured.metrics,
            lr=float(trainer.parts.updater.lr),
            seconds=time.perf_counter() - trainer.epoch_started,
            samples_per_second=trainer.reporter.median_rate(),
            best=is_best,
        )
    )
    trainer.adviser.epoch_ended()
    if over:
        trainer.metrics.reset()
        trainer.reporter.epoch = EpochSums()
    if is_best:
        trainer.saver.offer_best(snapshots.take(trainer))
    elif trainer.saver.may_save():
        trainer.saver.save(snapshots.take(trainer), "epoch")


def patience_is_out(trainer: "Trainer") -> bool:
    """Whether the run is to stop early, which is then told."""
    patience, best = trainer.job.config.training.early_stopping_patience, trainer.best
    if patience is None or best.epochs_since < patience:
        return False
    message = (
        f"stopped early: {best.metric} has not improved for {patience} epochs "
        f"(best {best.value:.4f} in epoch {best.epoch})"
    )
    trainer.emit(Warned(step=trainer.step, code="early_stop", message=message))
    return True
