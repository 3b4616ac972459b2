"""Saves checkpoints from the loop: between two steps if one is due, and before an error ends the run."""

from mptui.engine.checkpoint import snapshots
from mptui.engine.context import TrainContext
from mptui.engine.ranks.group import Ranks
from mptui.errors import DiskError, DivergedError, RunDirectoryError

_UNSAVED = (DivergedError, DiskError, RunDirectoryError)


def save_if_due(context: TrainContext) -> None:
    """Save between two steps if a checkpoint is due; hold the run while the disk can't be written."""
    if context.saver.tend():
        context.reporter.restart_clock()
    reason = context.save_is_due()
    if reason is not None and not context.settle():
        with context.reporter.saving():
            context.saver.save(snapshots.take(context.state), reason)


def may_save_before(error: BaseException, ranks: Ranks) -> bool:
    """Whether the state is to be saved before `error` ends the run: not a diverged one, nor to a lost disk.

    Of several ranks, all decide by the failure that all know of: they save together.
    """
    if ranks.is_alone:
        return not isinstance(error, _UNSAVED)
    return ranks.failure is not None and ranks.failure.kind not in {kind.__name__ for kind in _UNSAVED}


def save_before_error(context: TrainContext) -> None:
    """Save before an error ends the run, unless the step is saved or the weights are partly updated."""
    if context.parts.updater.applying or context.saver.has(context.state.step):
        return
    context.mailbox.early_exit.close()
    context.parts.updater.forget()
    try:
        context.save("error")
    except Exception as failed:  # noqa: BLE001 - the error that ends the run is told
        context.warn("not_saved", f"the last steps could not be saved: {failed}")
