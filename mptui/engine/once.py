"""Training metrics that count each sample once, however often its window is tried."""

import torch

from mptui.data.batch import Batch
from mptui.engine.guards.pieces import part
from mptui.tasks.base import Metrics


class Once:
    """Feeds metrics with the pieces of a window, in order, over as many tries as it takes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counted = self._place = 0
        self._before: dict[str, torch.Tensor] = {}

    def begin_window(self, *, cut_short: bool = False) -> None:
        """Another window: all of it is new.

        Args:
            cut_short: It may be left in its middle, with some of it counted.
        """
        self._counted = self._place = 0
        self._before = {name: t.clone() for name, t in self._metrics.state().items()} if cut_short else {}

    def take_back(self) -> None:
        """Count nothing of the window under way, which was cut short."""
        if self._before:
            self._metrics.load_state(self._before)

    def begin_again(self) -> None:
        """The same window from its start: what was counted stays counted."""
        self._place = 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Count the samples of `batch`, the next piece of the window, that were not counted yet."""
        first, self._place = self._place, self._place + batch.size
        known = self._counted - first
        if known <= 0:
            self._metrics.update(outputs, batch)
        elif known < batch.size:
            self._metrics.update(outputs[known:], part(batch, known, batch.size))
        self._counted = max(self._counted, self._place)
