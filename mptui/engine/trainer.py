"""The loop: step, epoch, run; the table of hooks."""

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch

from mptui.data.batch import Window
from mptui.engine import epochs
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.saver import Saver
from mptui.engine.commands import execute, may_undo, reason_of, undo_trial
from mptui.engine.compile import Stopwatch, outputs_of
from mptui.engine.context import Emit, HookFactory, OnBest, Rebuild, TrainContext
from mptui.engine.epochs import (
    begin_epoch,
    check_trained,
    enough_steps,
    finish_epoch,
    has_more,
    warn_if_unscored,
)
from mptui.engine.guards.divergence import NanGuard
from mptui.engine.guards.memory import MemoryGuard, read_windows
from mptui.engine.guards.nan_localizer import check_batch, check_loss, check_outputs
from mptui.engine.hooks import Hook
from mptui.engine.job import Job
from mptui.engine.mailbox import Mailbox, RunAbandoned, Stopped
from mptui.engine.numerics import NumericsMonitor
from mptui.engine.progress import Outcome
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.sync import Lockstep, RankTimes, Unreadable
from mptui.engine.time_budget import TimeBudget
from mptui.errors import DiskError, DivergedError, RunDirectoryError
from mptui.events import Recovered

# The training loop. Read `Trainer._step` first: it is one complete optimizer step in textbook form
# -------------------------------------------------------------------------------------------------
# `_train_step` retries it after a recoverable failure, `_train_epoch` iterates over the windows of an
# epoch, `train` over the epochs. Commands, signals, guards and saves are handled between two steps. `HOOKS`
# lists what acts beside the loop, and who builds a trainer gives it those that only look on
# (`mptui.engine.reporting.observers`): see `mptui.engine.hooks` for the moments, and `mptui.engine.state` for
# the contents of a checkpoint.

HOOKS: dict[str, HookFactory] = {
    "numerics": NumericsMonitor,
    "compile": epochs.CompileFallback,
    "nan": NanGuard,
    "memory": MemoryGuard,
    "rank times": RankTimes,
    "unreadable": Unreadable,
    "time": TimeBudget,
}
"""Hooks by name, in the order in which they act; a checkpoint stores their state by these names."""


class Trainer:
    """Trains one model; its arguments are those of `TrainContext`, and hooks that act after its own, by name.

    Attributes:
        context: Context shared with the hooks.
        state: Everything that a checkpoint holds.
    """

    def __init__(
        self,
        job: Job,
        *,
        emit: Emit,
        mailbox: Mailbox,
        saver: Saver,
        rebuild: Rebuild | None = None,
        on_best: OnBest = lambda result: None,
        seconds: Callable[[], float] | None = None,
        observers: Mapping[str, HookFactory] = MappingProxyType({}),
    ) -> None:
        self.context = TrainContext(
            job,
            emit=emit,
            mailbox=mailbox,
            saver=saver,
            rebuild=rebuild,
            on_best=on_best,
            seconds=seconds,
        )
        self.state = self.context.state
        for name, hook in {**HOOKS, **observers}.items():
            self.context.hooks.add(name, hook(self.context))
        self._lockstep = Lockstep(self.context)
        self.context.hooks.add("ranks", self._lockstep)
        self._started = time.perf_counter()
        self._is_first = True
        self._warned_of_empty_in = -1
        self._unscaled = torch.ones((), device=job.device)

    def close(self) -> None:
        """Stop the workers of the loaders."""
        self.context.job.train_loader.close()
        self.context.job.val_loader.close()

    def train(self) -> Outcome:
        """Train from the cursor to the end of the configured epochs or steps.

        Raises:
            Stopped: A stop was requested; the run is saved.
            DivergedError: The run diverged, and fallbacks did not help or are not allowed.
            MemoryExhaustedError: Not even a micro-batch of one sample fits.
            DataError: Data can't be read any more; the run is saved.
            DiskError: A checkpoint could not be written.
        """
        context = self.context
        context.begin()
        try:
            while has_more(context):
                context.mailbox.check_stop()
                started = time.perf_counter()
                self._try_epoch()
                if not context.left_epoch:  # else continue from the cursor
                    finish_epoch(context, started)
            check_trained(context)
        except Stopped:
            context.mailbox.early_exit.close()
            context.read_all_rows()
            context.save("stop")
            for run_stops in context.hooks.at(Hook.run_stops):
                run_stops()
            raise
        except RunAbandoned:
            raise
        except BaseException as error:  # a person's code may call exit()
            all_know = self._lockstep.fail(error)
            if all_know and may_save_before(error, context.ranks):
                save_before_error(context)
            raise
        for run_ends in context.hooks.at(Hook.run_ends):
            run_ends()
        warn_if_unscored(context)
        context.save("end")
        context.enter("finished")
        return context.outcome

    def _try_epoch(self) -> None:
        """Train to the end of the epoch; a switch of settings whose first steps fail is undone."""
        reason = None
        try:
            self._train_epoch()
        except Exception as error:
            if not may_undo(self.context, error) or not self._lockstep.fail(error):
                raise
            reason = reason_of(error, self.context.ranks)
        if reason is not None:  # outside the except block, since the traceback holds tensors
            undo_trial(self.context, reason)
            self.context.parts.replica.renew()  # the step may have failed in its backward pass

    def _train_epoch(self) -> None:
        context, state = self.context, self.state
        begin_epoch(context)
        epochs.enter_training(context)
        for window in read_windows(context, self._windows):
            if self._is_first:
                self._is_first = False
                for first_window in context.hooks.at(Hook.first_window):
                    first_window(window)
            watch = Stopwatch(context.device) if context.parts.compiler.timing else None
            self._train_step(window)
            if watch is not None:
                epochs.end_timed_step(context, window, watch.seconds())
            if not context.left_epoch:
                state.cursor.sample = window.next_sample
                self._between_steps()
            if context.left_epoch or enough_steps(context):
                break

    def _windows(self) -> Iterator[Window]:
        """Return the windows left in the epoch; none if only its validation was interrupted."""
        if enough_steps(self.context):
            return iter(())
        cursor, job = self.state.cursor, self.context.job
        windows = job.train_loader.windows(cursor.epoch, job.config.training.accumulate, cursor.sample)
        return self._lockstep.windows(windows)

    def _train_step(self, window: Window) -> None:
        """Take one optimizer step, with retries, and record its figures."""
        context, state, cursor = self.context, self.state, self.state.cursor
        if window.valid == 0:
            self._warn_of_empty()
            return
        if (cursor.epoch, cursor.sample) in context.left_out:
            return
        context.reporter.clock.begin()
        while (loss := self._try_step(window)) is None:
            if context.left_epoch:  # rolled back
                return
        sample = cursor.sample
        state.step += 1
        cursor.epoch_step += 1
        cursor.sample = window.next_sample
        updater, scale = state.parts.updater, state.parts.precision.loss_scale()
        context.reporter.record(
            (loss, updater.norm, updater.found_inf, self._unscaled if scale is None else scale, updater.lr),
            (state.step, cursor.epoch + 1, cursor.epoch_step, window.size, sample),
            window.wait_s,
        )
        context.reporter.clock.end()
        if context.phase != "training" or state.parts.compiler.on_probation:
            if context.outcome.first_step_s is None:
                context.outcome.first_step_s = time.perf_counter() - self._started
            epochs.end_first_step(context, window)

    def _try_step(self, window: Window) -> torch.Tensor | None:
        """Take the step; returns None if it failed and must be retried, unless the run was rolled back."""
        context = self.context
        try:
            return self._step(window)
        except Stopped:  # between two micro-batches: discard the window
            self._abandon_step()
            context.parts.updater.forget()
            raise
        except BaseException as error:
            self._abandon_step()
            if not isinstance(error, Exception):
                raise
            recover = context.recovery_for(error, "training", context.job.train_loader.share_size)
            if recover is not None:
                recover = self._lockstep.together(error, recover)
            if recover is None:
                raise
        # outside the except block, since the traceback holds the tensors of all frames
        half_applied = context.parts.updater.applying
        context.parts.updater.forget()
        recover()
        if half_applied:
            context.go_back()
            step = self.state.step
            action = f"rolled back to step {step}: the optimizer step was interrupted"
            context.emit(Recovered(step=step, problem="out of memory", action=action))
        return None

    def _step(self, window: Window) -> torch.Tensor:
        """Take one optimizer step over the micro-batches of `window`, without a sync.

        Invariants: up to `updater.apply`, only gradients, BatchNorm's buffers and the window's metrics
        change, which `updater.forget` and the next attempt take back, so that any error lets the window be
        tried again. From there to `updater.commit` weights and optimizer may be of two steps
        (`updater.applying`): nothing is saved or tried again then.

        Returns:
            The window's loss, 0-dim, on the device.
        """
        context, state, hooks = self.context, self.state, self.context.hooks
        job, parts, clock = state.job, state.parts, context.reporter.clock
        replica, precision, updater = parts.replica, parts.precision, parts.updater
        check, overwritten = job.config.guards.check_batches, parts.compiler.static_shapes
        context.seeds.set(state.cursor.epoch, state.cursor.sample)
        state.window_metrics.begin()
        for step_begins in hooks.at(Hook.step_begins):
            step_begins()
        context.mailbox.check_stop()
        keep_grads = overwritten and context.micro_batches.are_several(window)
        if keep_grads is not updater.keeps_grads:
            updater.keep_grads(keep_grads)
        weight = self._lockstep.weight(window)
        losses = []
        replica.begin(window, context.micro_batches.limits["training"], clock)
        for micro_batch, is_last in context.micro_batches.of(window):
            context.mailbox.check_stop()
            if check:
                check_batch(micro_batch, job.num_classes, state.step)
            clock.mark("copy")
            replica.synchronize(is_last)  # several processes sum their gradients in the last backward pass
            with precision.forward_context():  # autocast
                outputs = outputs_of(replica.network, micro_batch, model=state.model)
                check_outputs(outputs, state.model)
                loss = job.task.loss(outputs, micro_batch, weight, window.size)
            if check:
                check_loss(loss.detach(), state.step)
            clock.mark("forward")
            # before the backward pass: the outputs are still in the processor's cache
            seen = outputs.detach()
            state.window_metrics.update(seen.clone() if overwritten else seen, micro_batch)
            clock.mark("other")
            precision.backward(loss)  # of the scaled loss, in fp16
            clock.mark("backward")
            losses.append(loss.detach())
        losses += replica.fill_up(precision)  # what other processes have more of the window
        for gradients_ready in hooks.at(Hook.gradients_ready):
            gradients_ready()
        loss = replica.total(losses)  # of the whole window
        updater.set_rate()
        updater.unscale()  # sets found_inf if one is not finite: then the rest changes nothing
        updater.clip()
        state.window_metrics.end(updater.good)
        updater.apply()  # the optimizer's step
        updater.commit(loss)  # loss scale, BatchNorm's statistics, EMA and schedule follow the weights
        clock.mark("optimizer")
        return loss

    def _between_steps(self) -> None:
        """Report, save and execute commands, as far as due.

        Invariant: here weights, optimizer, averages and cursor are of the same step, and here alone a
        checkpoint of an epoch under way is taken, and settings, network or position change.
        """
        context = self.context
        if context.due.take_report():
            context.reporter.flush()
            if not context.act_on_report():
                save_if_due(context)
        for step_ends in context.hooks.at(Hook.step_ends):
            step_ends()
        if context.mailbox:
            while (command := context.mailbox.take()) is not None:
                execute(context, command)
            context.mailbox.check_stop()

    def _abandon_step(self) -> None:
        for step_abandoned in self.context.hooks.at(Hook.step_abandoned):
            step_abandoned()

    def _warn_of_empty(self) -> None:
        """Warn of batches without a target, once per epoch."""
        if self._warned_of_empty_in != self.state.cursor.epoch:
            self._warned_of_empty_in = self.state.cursor.epoch
            self.context.warn("empty_batch", "left out a batch with only ignored pixels")


# Saves checkpoints from the loop: between two steps if one is due, and before an error ends the run
# --------------------------------------------------------------------------------------------------

_UNSAVED = (DivergedError, DiskError, RunDirectoryError)


def save_if_due(context: TrainContext) -> None:
    """Save between two steps if a checkpoint is due; hold the run while the disk can't be written."""
    if context.saver.tend():
        context.reporter.restart_clock()
    reason = context.due.take_save()
    if reason is not None and not context.read_all_rows():
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
