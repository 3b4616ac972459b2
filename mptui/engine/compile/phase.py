"""Handles compilation in the loop: it takes minutes in which the training thread sees no stop request.

The state is saved before, and the mailbox's way out is open during the compilation: a stop request ends the
run without the training thread, and nothing is lost.
"""

from collections.abc import Iterator

from mptui.data.core.batch import Window
from mptui.engine.checkpoint import snapshots
from mptui.engine.context import TrainContext
from mptui.engine.guards.microbatch import Recovery
from mptui.engine.guards.oom_errors import release
from mptui.engine.hooks import Hook


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
        if not context.settle():
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
