"""The times of the ranks' steps come to rank 0 with the numbers that the ranks exchange anyway."""

from mptui.data.loading.sampler import Share
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.ranks.ranks_mailbox import TIMES, RanksMailbox
from mptui.engine.ranks.slow_ranks import KEPT, StepTimes

_PER_S = 1_000_000


class RankTimes(Hook):
    """Gives the times of each measured step of this rank to rank 0; not active in a process that is alone.

    All ranks measure the same steps, one for each report, and report between the same two steps; their times
    are in the notes of the next meeting, so that they cost no exchange of their own.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context, self._ranks = context, context.ranks
        self._own: list[int] | None = None
        self._arrived: dict[int, StepTimes] = {}
        if isinstance(context.mailbox, RanksMailbox):
            context.mailbox.times, context.mailbox.timed = self._take, self._collect
            self._ranks.sums_begin = context.reporter.clock.sums_begin

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
        self._own, self._ranks.steps = None, ()
        self._arrived.clear()

    def settings_changed(self) -> None:
        """Forget the steps of other settings."""
        self.run_begins()

    def _take(self) -> list[int]:
        own, self._own = self._own, None
        return own or [0] * TIMES

    def _collect(self, times: list[list[int]]) -> None:
        """Keep the times of all ranks; on CUDA, those of some arrive with a later report."""
        if not self._ranks.is_first:
            return
        for rank, microseconds in enumerate(times):
            if microseconds[-1]:
                self._arrived[rank] = StepTimes(*(each / _PER_S for each in microseconds))
        if len(self._arrived) == self._ranks.world_size:
            step = tuple(self._arrived[rank] for rank in range(self._ranks.world_size))
            self._ranks.steps = (*self._ranks.steps[1 - KEPT :], step)
            self._arrived.clear()


def shares_of(batch_size: int, world_size: int) -> list[int]:
    """Return the samples of a batch by rank."""
    return [len(Share(rank, world_size).of(range(batch_size))) for rank in range(world_size)]
