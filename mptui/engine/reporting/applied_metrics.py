"""Training metrics of the steps that were applied: one that is refused or taken anew adds nothing."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from mptui.data.core.batch import Batch
from mptui.engine.ranks.metrics import SCORES
from mptui.tasks.base import Metrics

MOST_NUMBERS = 1 << 20
"""Numbers of the outputs of a window that are kept until its step is applied: 4 MB."""


@runtime_checkable
class ConditionalMetrics(Metrics, Protocol):
    """Metrics that can be told of a batch before it is known whether it counts."""

    def update_if(self, outputs: torch.Tensor, batch: Batch, counts: torch.Tensor) -> None:
        """Add a batch if `counts` (0-dim bool on the device) is set when it is ranked.

        Batches that are given the same `counts` as the newest one are not ranked yet, but for `compute` and
        `state_dict`.
        """


class AppliedMetrics:
    """Updates metrics with the micro-batches of a window, if its step is applied. Never syncs.

    Args:
        metrics: The training metrics of this process.
        make: Makes metrics of the same kind, for one window.
    """

    def __init__(self, metrics: Metrics, make: Callable[[], Metrics]) -> None:
        self._metrics = metrics
        self._conditional = metrics if isinstance(metrics, ConditionalMetrics) else None
        self._make = make
        self._window: Metrics | None = None
        self._applied: torch.Tensor | None = None
        self._numbers = 0

    def begin(self) -> None:
        """Start a window, or start it over."""
        self._window, self._applied, self._numbers = None, None, 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add the window's next micro-batch."""
        self._numbers += outputs.numel()
        if self._conditional is not None and self._numbers <= MOST_NUMBERS:
            if self._applied is None:
                self._applied = torch.zeros((), dtype=torch.bool, device=outputs.device)
            self._conditional.update_if(outputs, batch, self._applied)
            return
        if self._window is None:
            self._window = self._make()
        self._window.update(outputs, batch)

    def end(self, found_inf: torch.Tensor) -> None:
        """Count the window unless `found_inf` (0-dim float32) is 1."""
        if self._applied is not None:
            torch.eq(found_inf, 0.0, out=self._applied)
        if self._window is not None:
            add_if(self._metrics, self._window.state_dict(), found_inf == 0.0)
        self.begin()


def add_if(metrics: Metrics, state: dict[str, torch.Tensor], applied: torch.Tensor) -> None:
    """Add the `state` of other metrics to `metrics` if `applied` (0-dim bool on the device).

    Sums on the device are added without a sync.
    """
    sums = metrics.state_dict()
    for name, value in state.items():
        counts = applied.to(value.device)
        if name == SCORES:  # a row for each sample
            sums[name] = torch.cat([sums[name], value]) if counts else sums[name]
        else:
            added = torch.where(counts, value, torch.zeros_like(value))
            sums[name] = sums[name] + added if name in sums else added
    metrics.load_state_dict(sums)
