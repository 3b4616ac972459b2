"""The samples that could not be read come to all ranks, so that each counts once against the budget."""

from mptui.data.core.types import Problem
from mptui.data.loading.prefetcher import BadSamples
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.ranks.ranks_mailbox import RanksMailbox

News = list[dict[int, Problem]]
"""The samples of the training and of the validation set, by index."""


class Unreadable(Hook):
    """Tells the other ranks of samples that this one could not read; not active in a process that is alone.

    Rank 0 records those of all, and all fail alike where there are more than `data.bad_sample_budget`.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        if isinstance(context.mailbox, RanksMailbox):
            context.mailbox.has_news, context.mailbox.take_news = self._has_news, self._take_news
            context.mailbox.hear_news = self._hear

    @property
    def active(self) -> bool:
        """Whether there are several ranks."""
        return not self._context.ranks.is_alone

    def report_due(self) -> None:
        """Check the number of samples that all ranks could not read.

        Raises:
            DataError: There are more than the budget allows.
        """
        for bad_samples in self._halves():
            bad_samples.check()

    def _halves(self) -> tuple[BadSamples, BadSamples]:
        job = self._context.job
        return job.train_loader.bad_samples, job.val_loader.bad_samples

    def _has_news(self) -> bool:
        return any(bad_samples.has_new for bad_samples in self._halves())

    def _take_news(self) -> News:
        return [bad_samples.take_new() for bad_samples in self._halves()]

    def _hear(self, news: list[News]) -> None:
        for of_rank in news:
            for bad_samples, found in zip(self._halves(), of_rank, strict=True):
                bad_samples.hear(found)
