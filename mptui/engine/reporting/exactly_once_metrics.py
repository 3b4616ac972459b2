"""Training metrics that count each sample once, however often its window is tried."""

import torch

from mptui.data.core.batch import Batch
from mptui.engine.guards.microbatch import part
from mptui.tasks.base import Metrics


class Once:
    """Feeds metrics with the pieces of a window, in order, over as many tries as it takes.

    Attributes:
        counted: Samples of the window under way that the metrics have already. A checkpoint keeps it: a
            window that was left between two pieces begins again after a resume.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.counted = self._place = 0

    def begin(self) -> None:
        """A window from its start: what was counted stays counted."""
        self._place = 0

    def end(self) -> None:
        """The window is done: all of the next one is new."""
        self.counted = 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Count the samples of `batch`, the next piece of the window, that were not counted yet."""
        first, self._place = self._place, self._place + batch.size
        known = self.counted - first
        if known <= 0:
            self._metrics.update(outputs, batch)
        elif known < batch.size:
            self._metrics.update(outputs[known:], part(batch, known, batch.size))
        self.counted = max(self.counted, self._place)
