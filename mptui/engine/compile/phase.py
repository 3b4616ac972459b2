"""The trainer's flow around a compile: minutes in which the worker sees no stop.

All that was trained is saved before, and the mailbox's way out is open meanwhile: a stop ends the run from
outside, and nothing is lost.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mptui.data.core.batch import Window
from mptui.engine.checkpoint import snapshots
from mptui.engine.compile.policy import Stopwatch

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


class CompilePhase:
    """Says when a trainer compiles, and until when."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    def enter_training(self) -> None:
        """Training begins or goes on; where its next step compiles, that comes first."""
        trainer, compiler = self._trainer, self._trainer.parts.compiler
        if compiler.active and not compiler.proven:
            self._open_way_out()
            mode = trainer.job.config.speed.compile
            trainer.enter("compiling", detail=mode, expected_s=compiler.expected_s)
            compiler.begin()
        else:
            trainer.enter("training" if trainer.step else "warming_up")
        trainer.parts.updater.keep_grads(compiler.static_shapes)
        trainer.reporter.restart_clock()

    def timed_step(self, window: Window) -> None:
        """A step of the few that decide whether compiling repays itself."""
        trainer = self._trainer
        watch = Stopwatch(trainer.device)
        trainer._step(window)
        if trainer.parts.compiler.note_step(watch.seconds()) and not trainer.left_epoch:
            trainer.cursor.sample = window.next_sample  # the step is through, and is saved with the rest
            if not trainer.guards.settle():
                self.enter_training()

    def first_step_done(self) -> None:
        """The first step of the run, or of its compiled code, is through."""
        self._trainer.mailbox.way_out.close()
        self._trainer.parts.compiler.end()
        self._trainer.enter("training")
        self._trainer.reporter.restart_clock()

    def begin_validation(self) -> Iterator[None]:
        """Say what a validation does first; what is returned is asked before each of its batches."""
        trainer, compiler = self._trainer, self._trainer.parts.compiler
        if compiler.active and not compiler.proven_in_validation:
            self._open_way_out()
            trainer.enter("compiling", detail="for the validation")
        else:
            trainer.enter("validating", total=trainer.job.val_loader.batches)

        def looks() -> Iterator[None]:
            trainer.mailbox.check_stop()
            yield
            self.end_validation()
            while True:
                trainer.mailbox.check_stop()
                yield

        return looks()

    def end_validation(self) -> None:
        """A batch of the validation is through, and with it what it compiled."""
        trainer = self._trainer
        if trainer.phase == "compiling":
            trainer.mailbox.way_out.close()
            trainer.parts.compiler.proven_in_validation = True
            trainer.enter("validating", total=trainer.job.val_loader.batches)

    def _open_way_out(self) -> None:
        trainer = self._trainer
        trainer.saver.write_waiting_best(force=True)
        trainer.saver.save(snapshots.take(trainer), "compile", wait=True)
        trainer.mailbox.check_stop()
        trainer.mailbox.way_out.open()
