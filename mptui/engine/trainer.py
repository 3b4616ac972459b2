"""The training loop.

Read `Trainer._step` first: it is the flow of a textbook, forward under autocast, scaled backward, unscale,
clip, step, update. Nothing in it waits for the device. What a person, a signal or the disk wants is done
between two steps.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mptui.data.core.batch import Batch, Window
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.checks import check_batch, check_loss
from mptui.engine.commands import obey
from mptui.engine.compile.phase import CompilePhase
from mptui.engine.epoch_end import finish_epoch, patience_is_out
from mptui.engine.evaluate import ValidationResult, evaluate
from mptui.engine.guards.guards import Guards
from mptui.engine.guards.oom_errors import is_host_full, is_out_of_memory
from mptui.engine.job import Job, ProfileSwitch, build_parts, steps_left
from mptui.engine.mailbox import Command, Mailbox, Stopped
from mptui.engine.numerics.monitor import Lens
from mptui.engine.progress import Best, Cursor, Outcome
from mptui.engine.reporting.exactly_once_metrics import Once
from mptui.engine.reporting.reporter import Reporter
from mptui.engine.reporting.speed_advice import Adviser
from mptui.engine.torch_setup import StepSeeds
from mptui.errors import DataError, DiskError, MemoryExhaustedError
from mptui.events import (
    EpochStarted,
    Event,
    PhaseChanged,
    Warned,
)


class Trainer:
    """Trains one model, and answers to one mailbox.

    Args:
        job: What is trained, how, on what.
        emit: Where events go; called from the thread that trains, and from the saver's.
        mailbox: Looked at between two steps, and between two batches of a validation.
        saver: Writes the checkpoints.
        rebuild: Makes the job that a command for another preset or setting asks for, around the same model.
    """

    def __init__(
        self,
        job: Job,
        *,
        emit: Callable[[Event], None],
        mailbox: Mailbox,
        saver: Saver,
        rebuild: Callable[[Command], ProfileSwitch] | None = None,
    ) -> None:
        self.job, self.model, self.task, self.device = job, job.model, job.task, job.device
        self.emit, self.mailbox, self.saver, self.rebuild = emit, mailbox, saver, rebuild
        self.cursor, self.best, self.outcome = Cursor(), Best(self.task.primary), Outcome()
        self.step = 0
        self._started = self.epoch_started = time.perf_counter()
        self.phase = ""
        self.left_epoch = False
        self._empty_in = -1
        self.parts = build_parts(job, self._warn)
        self.metrics = self.task.metrics(self.device, training=True)
        self.reporter = Reporter(
            emit,
            self.device,
            job.config.logging.step_interval_s,
            metrics=self.metrics,
            host_metrics=self.task.metrics(torch.device("cpu")),
        )
        self.reporter.scaled = self.parts.precision.scaled
        self.once = Once(self.metrics)
        self.seeds = StepSeeds(job.config.training.seed, self.device)
        self.guards = Guards(self)
        self._unscaled = torch.ones((), device=self.device)
        self.lens = Lens(self)
        self.adviser = Adviser(self)
        self._compiling = CompilePhase(self)

    def close(self) -> None:
        """End the workers of the loaders."""
        self.job.train_loader.close()
        self.job.val_loader.close()

    # -- the flow

    def train(self) -> Outcome:
        """Train to the end of the configured epochs or steps, from wherever the cursor stands.

        Raises:
            Stopped: It was asked to end, and the run is saved.
            DivergedError: It diverged, and gentler settings did not help, or may not be taken.
            MemoryExhaustedError: Not even one sample at a time fits.
            DataError: Data can't be read any more; the run is saved.
            DiskError: A checkpoint could not be written.
        """
        self.model.train()
        self.guards.begin()
        try:
            while self._has_more():
                self.mailbox.check_stop()
                self._train_epoch()
                if not self.left_epoch:  # else it goes on from the cursor, with other settings
                    finish_epoch(self)
        except Stopped:
            self.mailbox.way_out.close()
            self.guards.settle()
            self.save("stop")
            raise
        except Exception as error:
            full = is_out_of_memory(error) or is_host_full(error)
            if full or isinstance(error, (DataError, MemoryExhaustedError)):
                self._save_whole()
            raise
        self.guards.finish()
        self.save("end")
        self.enter("finished")
        return self.outcome

    def _save_whole(self) -> None:
        """Save the steps since the last checkpoint before an error ends the run, if the weights are whole."""
        if self.parts.updater.applying or self.saver.has(self.step):
            return
        self.mailbox.way_out.close()
        self.parts.updater.forget()
        try:
            self.save("error")
        except Exception as failed:
            if not (isinstance(failed, DiskError) or is_out_of_memory(failed) or is_host_full(failed)):
                raise
            self._warn("not_saved", f"the last steps could not be saved: {failed}")

    def _has_more(self) -> bool:
        """Whether steps are left, or an epoch whose validation was cut off."""
        if self.cursor.epoch >= self.job.config.training.epochs:
            return False
        begun = self.cursor.epoch_step > 0
        if self.enough():
            return begun and self.cursor.measured_at != self.step
        return begun or not patience_is_out(self)

    def enough(self) -> bool:
        """Whether the run has taken all the steps that `training.max_steps` leaves it."""
        limit = self.job.config.training.max_steps
        return limit is not None and self.step >= limit

    def _train_epoch(self) -> None:
        self.emit(
            EpochStarted(
                step=self.step,
                epoch=self.cursor.epoch + 1,
                epochs=self.job.config.training.epochs,
                steps=self.parts.steps_per_epoch,
                first_step=self.cursor.epoch_step,
            )
        )
        self.left_epoch = False
        self.epoch_started = time.perf_counter()
        self._compiling.enter_training()
        for window in self.guards.memory.windows(self._windows_left):
            if self.parts.compiler.timing:
                self._compiling.timed_step(window)
            else:
                self._step(window)
            if not self.left_epoch:
                self.cursor.sample = window.next_sample
                if self.mailbox or self.guards.due(self.step) or self.reporter.due(time.perf_counter()):
                    self._between_steps()
            if self.left_epoch or self.enough():
                break

    def _windows_left(self) -> Iterator[Window]:
        """The rest of the epoch; nothing where only its validation was cut off."""
        if self.enough():
            return iter(())
        return self.job.train_loader.windows(
            self.cursor.epoch, self.job.config.training.accumulate, self.cursor.sample
        )

    def _step(self, window: Window) -> None:
        """One optimizer step over the micro-batches of `window`."""
        if window.valid == 0:
            self._tell_empty()
            return
        if self.guards.nan.leaves_out(self.cursor.epoch, self.cursor.sample):
            return
        self.reporter.clock.begin()
        loss = self._update(window)
        if loss is None:
            return
        sample = self.cursor.sample
        self.step += 1
        self.cursor.epoch_step += 1
        self.cursor.sample = window.next_sample
        scale = self.parts.precision.loss_scale()
        self.reporter.note(
            (
                loss,
                self.parts.updater.norm,
                self.parts.updater.found_inf,
                self._unscaled if scale is None else scale,
                self.parts.updater.lr,
            ),
            (self.step, self.cursor.epoch + 1, self.cursor.epoch_step, window.size, sample),
            window.wait_s,
        )
        self.reporter.clock.end()
        if self.phase != "training":
            self._first_step_done()

    def _tell_empty(self) -> None:
        """Once an epoch, however many there are."""
        if self._empty_in != self.cursor.epoch:
            self._empty_in = self.cursor.epoch
            self._warn("empty_batch", "a batch had only ignored pixels and was left out")

    def _update(self, window: Window) -> torch.Tensor | None:
        """Move the weights by the window's gradients; tried again after a failure that can be mended.

        Returns:
            The window's loss, 0-dim on the device; None where the run went back to an earlier state instead.
        """
        while True:
            try:
                loss = self._try_update(window)
            except Stopped:  # between two micro-batches: as if the window had not begun
                self.parts.updater.forget()
                raise
            except Exception as error:
                mend = self.mend_for(error, "training", self.job.config.training.batch_size)
                if mend is None:
                    raise
            else:
                self.once.end()
                return loss
            # out of the except block: the traceback held the tensors of all frames
            half_applied = self.parts.updater.applying
            self.parts.updater.forget()
            mend()
            if half_applied:
                self.guards.go_back()
                return None

    def _try_update(self, window: Window) -> torch.Tensor:
        self.seeds.set(self.cursor.epoch, self.cursor.sample)
        self.once.begin()
        with self.lens.watching():
            losses = [
                self._forward_backward(piece, window)
                for batch in window
                for piece in self.guards.memory.pieces(batch)
            ]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        self.parts.updater.step(loss)
        self.reporter.clock.mark("optimizer")
        return loss

    def mend_for(self, error: Exception, phase: str, rows: int) -> Callable[[], None] | None:
        """What to do about a failure in a batch of `rows` before it is tried again; None: nothing helps."""
        if self.parts.compiler.gave_up_on(error, phase):
            return lambda: None
        return self.guards.memory.mend(error, phase, rows)

    def _forward_backward(self, batch: Batch, window: Window) -> torch.Tensor:
        """Add the gradients of one micro-batch; returns its share of the window's loss, 0-dim, detached."""
        self.mailbox.check_stop()
        if self.job.config.guards.check_batches:
            check_batch(batch, self.job.num_classes, self.step)
        mark = self.reporter.clock.mark
        mark("copy")
        with self.parts.precision.forward_context():
            outputs = self.model(*batch.inputs)
            loss = self.task.loss(outputs, batch, window.valid, window.size)
        if self.job.config.guards.check_batches:
            check_loss(loss.detach(), self.step)
        mark("forward")
        # before the backward pass: the outputs are still in the processor's cache
        seen = outputs.detach()
        # a CUDA graph writes its next outputs over these
        self.once.update(seen.clone() if self.parts.compiler.static_shapes else seen, batch)
        mark("other")
        self.parts.precision.backward(loss)
        mark("backward")
        return loss.detach()

    # -- between two steps

    def _between_steps(self) -> None:
        if self.reporter.due(time.perf_counter()):
            self.reporter.flush()
            self.lens.tell()
            self.adviser.look()
            if not self.guards.look():
                self._save_if_due()
        self.guards.keep_if_due()
        while (command := self.mailbox.take()) is not None:
            obey(self, command)
        self.mailbox.check_stop()

    def _save_if_due(self) -> None:
        if self.saver.tend():
            self.reporter.restart_clock()
        reason = self.saver.reason_now(self.step)
        if reason is not None and not self.guards.settle():
            with self.reporter.saving():
                self.saver.save(snapshots.take(self), reason)

    def take_job(self, job: Job) -> None:
        """Go on with another job around the same model, optimizer and average, from the next step on."""
        self.job, self.task = self.guards.nan.take_job(job), job.task
        left = steps_left(self.job, self.cursor, self.step)
        self.parts = build_parts(self.job, self._warn, self.parts, left)
        self.reporter.scaled = self.parts.precision.scaled
        self.guards.take_parts()
        self.adviser.restart()

    def leave_epoch(self) -> None:
        """End the pass over the data under way; the next one begins where the cursor stands."""
        self.left_epoch = True

    def validate(self) -> ValidationResult:
        """Measure the validation set, with the averaged weights where there are some."""
        self.reporter.flush(wait=True)
        looks = self._compiling.begin_validation()
        with self.parts.average.in_place() if self.parts.average is not None else contextlib.nullcontext():
            measured = evaluate(
                self.model,
                self.task,
                self.job.val_loader,
                self.parts.precision,
                self.device,
                on_progress=self.emit,
                check_stop=lambda: next(looks),
                in_pieces=self.guards.memory.measure,
                outputs_stay=not self.parts.compiler.static_shapes,
            )
        self._compiling.end_validation()
        return measured

    def save(self, reason: str, more: dict[str, Any] | None = None) -> None:
        """Save now, with `more` (JSON-ready) in the checkpoint's state, and wait until it is on the disk."""
        before = self.phase
        self.enter("saving")
        snapshot = snapshots.take(self)
        snapshot.state |= more or {}
        self.saver.save(snapshot, reason, wait=True)
        self.enter(before)
        self.reporter.restart_clock()

    def _first_step_done(self) -> None:
        if self.outcome.first_step_s is None:
            self.outcome.first_step_s = time.perf_counter() - self._started
        self._compiling.first_step_done()

    def enter(
        self, phase: str, *, detail: str = "", total: int | None = None, expected_s: float | None = None
    ) -> None:
        """Say what the run is busy with from now on."""
        if phase != self.phase:
            self.phase = phase
            self.emit(
                PhaseChanged(step=self.step, phase=phase, detail=detail, total=total, expected_s=expected_s)
            )

    def _warn(self, code: str, message: str) -> None:
        self.emit(Warned(step=self.step, code=code, message=message))
