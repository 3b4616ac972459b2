"""Training metrics that count each sample once, however often its window is retried."""

from collections.abc import Mapping
from typing import Any

import torch

from mptui.data.core.batch import Batch
from mptui.engine.guards.microbatch import part
from mptui.tasks.base import Metrics


class ExactlyOnceMetrics:
    """Updates metrics with the micro-batches of a window, in order, across retries.

    Attributes:
        counted: Samples of the current window already counted. Saved in checkpoints: a window interrupted
            between two micro-batches starts over after a resume.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.counted = self._place = 0

    def begin(self) -> None:
        """Start a window, or start it over; samples already counted stay counted."""
        self._place = 0

    def end(self) -> None:
        """End the window; all samples of the next one are new."""
        self.counted = 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Count the samples of `batch`, the window's next micro-batch, that were not counted yet."""
        first, self._place = self._place, self._place + batch.size
        known = self.counted - first
        if known <= 0:
            self._metrics.update(outputs, batch)
        elif known < batch.size:
            self._metrics.update(outputs[known:], part(batch, known, batch.size))
        self.counted = max(self.counted, self._place)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of samples counted in the current window."""
        return {"counted": self.counted}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the count from `state_dict`."""
        self.counted = state_dict.get("counted", 0)
