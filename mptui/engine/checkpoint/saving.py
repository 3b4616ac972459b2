"""Saves checkpoints from the loop: between two steps if one is due, and before an error ends the run."""

from mptui.engine.checkpoint import snapshots
from mptui.engine.context import TrainContext
from mptui.engine.guards.oom_errors import is_memory_full
from mptui.errors import DataError, DiskError, DivergedError, MemoryExhaustedError, RunDirectoryError
from mptui.registry.own_code import fault_of


def save_if_due(context: TrainContext) -> None:
    """Save between two steps if a checkpoint is due; hold the run while the disk can't be written."""
    if context.saver.tend():
        context.reporter.restart_clock()
    reason = context.save_is_due()
    if reason is not None and not context.settle():
        with context.reporter.saving():
            context.saver.save(snapshots.take(context.state), reason)


def may_save_before(error: Exception, *, together: bool) -> bool:
    """Whether the state is to be saved before `error` ends the run: not a diverged one, nor to a lost disk.

    `together`, with other ranks, only the errors that all of them raise.
    """
    if isinstance(error, (DivergedError, DiskError, RunDirectoryError)):
        return False
    known = isinstance(error, (DataError, MemoryExhaustedError))
    return known or is_memory_full(error) or fault_of(error) is not None or not together


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
