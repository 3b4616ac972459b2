"""Keeps all ranks at the same step: what one can't do, all repeat or end together; and their mailbox."""

import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto

import torch
from typing_extensions import override

from mptui.data.batch import Window
from mptui.data.reading import BadSamples
from mptui.data.sampler import Share
from mptui.data.types import Problem
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.micro_batches import Recovery, is_out_of_memory, release
from mptui.engine.ranks.beats import KEPT, StepTimes
from mptui.engine.ranks.group import RankFailure, Ranks, RankStatus, RetryError, SyncPart, as_lost
from mptui.errors import MemoryExhaustedError

# Keeps all ranks at the same step: what one can't do, all repeat or end together
# -------------------------------------------------------------------------------


class Stage(Enum):
    """Where a rank is, which says how it can tell the others that it failed."""

    ASIDE = auto()
    """The others will meet next."""
    READING = auto()
    """The others read a window, and take a step."""
    STEP = auto()
    """The others take a step, and meet before its update."""
    MET = auto()
    """The others have the gradients of the step: it can't be taken back any more."""


class Lockstep(Hook):
    """The step of several ranks; not active in a process that is alone.

    All meet once in a step, when the gradients are summed and before the update. A rank that failed before
    makes up for its part of the sums, so that the others reach the meeting; there they learn of it, and none
    updates its weights.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._ranks = context.ranks
        self._stage = Stage.ASIDE
        self._weighs = self._weighed = False
        self._all_know = True

    @property
    def active(self) -> bool:
        """Whether there are several ranks."""
        return not self._ranks.is_alone

    def windows(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield windows with the number of valid items of all ranks."""
        return windows if self._ranks.is_alone else self._counted_by_all(windows)

    def _counted_by_all(self, windows: Iterator[Window]) -> Iterator[Window]:
        while True:
            self._stage = Stage.READING
            self._weighed = False
            if (window := next(windows, None)) is None:
                self._stage = Stage.ASIDE
                return
            valid = self._met_valid(window) if self._meets_after_reading else window.size
            self._stage = Stage.STEP
            yield replace(window, valid=valid)

    def _met_valid(self, window: Window) -> int:
        with self._context.reporter.waiting():
            found = self._ranks.sync_status(value=window.valid)
        return sum(found) if self._masks else window.size

    def weight(self, window: Window) -> torch.Tensor | float:
        """Return the total weight of a window's valid items on all ranks, as `Task.window_weight`."""
        weight = self._context.task.window_weight(window)
        if self._ranks.is_alone or not isinstance(weight, torch.Tensor):
            return weight
        self._weighs = True
        total = self._ranks.sum_(weight.clone())
        self._weighed = True
        return total

    def step_begins(self) -> None:
        """Begin a step, or repeat it."""
        self._stage = Stage.STEP
        self._weighed = False

    def gradients_ready(self) -> None:
        """Meet before the update.

        Raises:
            RetryError: Another rank could not take the step; it is to be repeated.
            MptuiError: Another rank has failed.
        """
        self._ranks.sync_status()
        self._stage = Stage.MET
        self._context.parts.replica.sums_done()

    def failed(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """Return a recovery from an error of another rank that is none of memory: one of its compiler."""
        is_other = isinstance(error, RetryError) and not is_out_of_memory(error)
        return self._context.parts.compiler.undo if is_other else None

    def together(self, error: Exception, recovery: Recovery) -> Recovery | None:
        """Return a recovery of all ranks from an error of the step of this one; None if it is too late."""
        if self._ranks.is_alone:
            return recovery
        if not isinstance(error, RetryError):
            if self._stage is Stage.MET:
                return None
            if tied_by := self._context.parts.replica.tied_by:
                raise _not_repeatable(error, tied_by) from error
            self._make_up(error)
            self._ranks.sync_status(RankStatus.NO_MEMORY if is_out_of_memory(error) else RankStatus.RETRY)

        def recover() -> None:
            recovery()
            self._context.parts.replica.renew()

        return recover

    def fail(self, error: BaseException) -> bool:
        """Tell the other ranks that `error` ends the run, where they can still hear it.

        Returns:
            Whether all know of it, so that they can save together.

        Raises:
            RankError: They can't be reached.
        """
        if self._ranks.is_alone or self._ranks.failure is not None:
            return self._all_know
        if (unreachable := as_lost(error)) is not None:
            raise unreachable from error
        in_step = self._stage is Stage.STEP
        is_tied = in_step and self._context.parts.replica.tied_by
        if is_tied or self._stage is Stage.MET:
            self._ranks.end_alone(RankFailure.of(error, self._ranks.rank))
            self._all_know = False  # they find out when this process ends
            return False
        has_no_meeting = self._stage is Stage.READING and not self._meets_after_reading
        if in_step or has_no_meeting:
            self._make_up(error)
        self._stage = Stage.ASIDE
        self._ranks.fail(error)
        return True

    @property
    def _masks(self) -> bool:
        return self._context.job.train_loader.masks

    @property
    def _meets_after_reading(self) -> bool:
        """Whether all meet before a step: to sum up its valid items, or since none can leave it alone."""
        return self._masks or bool(self._context.parts.replica.tied_by)

    def _make_up(self, error: BaseException) -> None:
        if error.__traceback__ is not None:  # it holds the tensors that did not fit
            traceback.clear_frames(error.__traceback__)
        release(self._context.device)
        if self._weighs and not self._weighed:
            self._ranks.sum_(torch.zeros((), device=self._context.device))
        self._context.parts.replica.make_up()


def _not_repeatable(error: BaseException, tied_by: str) -> BaseException:
    """Return the error of a step that the other ranks can't repeat: they wait for this one in its passes."""
    if not is_out_of_memory(error):
        return error
    words = (str(error).strip() or "out of memory").splitlines()[0]
    return MemoryExhaustedError(
        f"with {tied_by}, a step that does not fit is not repeated: {words}",
        hint="set memory.micro_batch to fewer samples, or memory.activation_checkpointing = true",
    )


# The times of the ranks' steps come to rank 0 with the numbers that the ranks exchange anyway
# --------------------------------------------------------------------------------------------

_PER_S = 1_000_000


class RankTimes(Hook, SyncPart):
    """Gives the times of each measured step of this rank to rank 0; not active in a process that is alone.

    All ranks measure the same steps, one for each report, and report between the same two steps; their times
    are among the numbers of the next meeting, so that they cost no exchange of their own.
    """

    size = 4

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._ranks = context.ranks
        self._own: list[int] | None = None
        self._arrived: dict[int, StepTimes] = {}
        self._ranks.agree_on("times", self)

    @property
    def active(self) -> bool:
        """Whether there are several ranks."""
        return not self._ranks.is_alone

    def report_due(self) -> None:
        """Keep the times of the step that was measured for this report."""
        reporter = self._context.reporter
        if reporter.times is not None:
            measured = reporter.times
            if self._context.parts.replica.tied_by:  # all else waits for other ranks, too
                measured = StepTimes(data_s=measured.data_s, wait_s=sum(measured) - measured.data_s)
            *times, waited = (round(_PER_S * seconds) for seconds in measured)
            self._own = [*times, max(1, waited)]
            reporter.times = None

    def run_begins(self) -> None:
        """Forget the steps measured so far."""
        self._own = None
        self._ranks.steps = ()
        self._arrived.clear()

    def settings_changed(self) -> None:
        """Forget the steps of other settings."""
        self.run_begins()

    @override
    def numbers(self) -> list[int]:
        """Return the times of a step in microseconds, of which the last is not 0; zeros: none is new."""
        own, self._own = self._own, None
        return own or [0] * self.size

    @override
    def on_numbers(self, rows: list[list[int]]) -> None:
        """Keep the times of all ranks; on CUDA, those of some arrive with a later report."""
        if not self._ranks.is_first:
            return
        for rank, microseconds in enumerate(rows):
            if microseconds[-1]:
                self._arrived[rank] = StepTimes(*(each / _PER_S for each in microseconds))
        if len(self._arrived) == self._ranks.world_size:
            step = tuple(self._arrived[rank] for rank in range(self._ranks.world_size))
            self._ranks.steps = (*self._ranks.steps[1 - KEPT :], step)
            self._arrived.clear()


def shares_of(batch_size: int, world_size: int) -> list[int]:
    """Return the samples of a batch by rank."""
    return [len(Share(rank, world_size).of(range(batch_size))) for rank in range(world_size)]


# The samples that could not be read come to all ranks, so that each counts once against the budget
# -------------------------------------------------------------------------------------------------

News = list[dict[int, Problem]]
"""The samples of the training and of the validation set, by index."""


class Unreadable(Hook, SyncPart):
    """Tells the other ranks of samples that this one could not read; not active in a process that is alone.

    Rank 0 records those of all, and all fail alike where there are more than `data.bad_sample_budget`.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        context.ranks.agree_on("unreadable", self)

    @property
    def active(self) -> bool:
        """Whether there are several ranks."""
        return not self._context.ranks.is_alone

    def report_due(self) -> None:
        """Check the number of samples that all ranks could not read.

        Raises:
            DataError: There are more than the budget allows.
        """
        for bad_samples in self._both():
            bad_samples.check()

    def _both(self) -> tuple[BadSamples, BadSamples]:
        job = self._context.job
        return job.train_loader.bad_samples, job.val_loader.bad_samples

    @override
    def news(self) -> News | None:
        found = [bad_samples.take_new() for bad_samples in self._both()]
        return found if any(found) else None

    @override
    def on_news(self, told: list[News]) -> None:
        for of_rank in told:
            for bad_samples, found in zip(self._both(), of_rank, strict=True):
                bad_samples.add_of_others(found)


# The mailbox of a rank: commands and stop requests that all ranks obey between the same two steps
# ------------------------------------------------------------------------------------------------


class RanksMailbox(Mailbox, SyncPart):
    """Holds the commands that all ranks agreed on when they last met (`Ranks.sync_status`).

    A stop and a save may be asked of any rank, by a signal; other commands come to rank 0.

    Args:
        ranks: The ranks.
        own: The mailbox of this process, to which signals, keys and sockets post.
    """

    size = 1

    def __init__(self, ranks: Ranks, own: Mailbox) -> None:
        super().__init__()
        self._ranks = ranks
        self._own = own
        self._taken: list[Command] = []
        self._agreed: deque[Command] = deque()
        ranks.agree_on("mailbox", self)

    @property
    @override
    def stop_is_asked(self) -> bool:
        return self.stop_requested or self._own.stop_requested

    @override
    def numbers(self) -> list[int]:
        """Return 1 + the signal of a stop; 1: without one; 0: no stop."""
        stop = 1 + (self._own.stop_signal or 0) if self._own.stop_requested else 0
        return [stop]

    @override
    def on_numbers(self, rows: list[list[int]]) -> None:
        if stop := max(row[0] for row in rows):
            self.stop_requested = True
            self.stop_signal = stop - 1 or None

    @override
    def news(self) -> list[Command] | None:
        while (command := self._own.take()) is not None:
            self._taken.append(command)
        told, self._taken = self._taken, []
        return told or None

    @override
    def on_news(self, told: list[list[Command]]) -> None:
        for commands in told:
            # a launcher sends its signal to all: one save suffices
            self._agreed.extend(command for command in commands if command not in self._agreed)

    def poll(self) -> None:
        """Meet the other ranks; raise Stopped if one of them was asked to stop."""
        self._ranks.sync_status()
        self.check_stop()

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return the next command that all agreed on; with a timeout, rank 0 waits for one so long."""
        if not self._agreed and timeout_s > 0:
            if self._ranks.is_first and not self._own.stop_requested:
                command = self._own.take(timeout_s)
                self._taken += [] if command is None else [command]
            self._ranks.sync_status()
        return self._agreed.popleft() if self._agreed else None

    def __bool__(self) -> bool:
        return self.stop_requested or bool(self._agreed)


def mailbox_of(ranks: Ranks, own: Mailbox) -> Mailbox:
    """Return the mailbox of all ranks; that of a process that is alone is its own."""
    return own if ranks.is_alone else RanksMailbox(ranks, own)
