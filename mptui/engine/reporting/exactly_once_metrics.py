"""Training metrics that count each sample once, however often its window is tried."""

from collections.abc import Mapping
from typing import Any

import torch

from mptui.data.core.batch import Batch
from mptui.engine.guards.microbatch import part
from mptui.tasks.base import Metrics


class ExactlyOnceMetrics:
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

    def state_dict(self) -> dict[str, Any]:
        """Samples of the window under way that were counted."""
        return {"counted": self.counted}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue within the window that `state_dict` was taken in."""
        self.counted = state_dict.get("counted", 0)
