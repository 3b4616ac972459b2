"""Training metrics of the steps that were applied: one that is refused or taken anew adds nothing."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from mptui.data.core.batch import Batch
from mptui.engine.ranks.metrics import SCORES
from mptui.tasks.base import Metrics

MOST_NUMBERS = 1 << 20
"""Numbers of the outputs of a window that are kept until its step is applied: 4 MB."""


@runtime_checkable
class WindowMetrics(Metrics, Protocol):
    """Metrics that take a window as a whole, before the host knows whether it counts."""

    def kept_of(self, outputs: torch.Tensor, batch: Batch) -> Any:  # noqa: ANN401 - only they read it
        """Return what is counted of a batch; computes nothing."""

    def update_window(self, kept: Sequence[Any], counts: torch.Tensor) -> None:
        """Add what `kept_of` returned of the batches of a window; if an error is raised, none of them.

        Args:
            kept: Of each batch.
            counts: Whether the window counts, 0-dim bool on the device.
        """


class AppliedMetrics:
    """Updates metrics with the micro-batches of a window, if its step is applied. Never syncs.

    Args:
        metrics: The training metrics of this process.
        make: Makes metrics of the same kind, for one window.
    """

    def __init__(self, metrics: Metrics, make: Callable[[], Metrics]) -> None:
        self._metrics = metrics
        self._whole = metrics if isinstance(metrics, WindowMetrics) else None
        self._make = make
        self.begin()

    def begin(self) -> None:
        """Start a window, or start it over."""
        self._kept: list[Any] = []
        self._numbers = 0  # of the outputs
        self._apart: Metrics | None = None

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add the window's next micro-batch."""
        self._numbers += outputs.numel()
        if self._whole is not None and self._numbers <= MOST_NUMBERS:
            self._kept.append(self._whole.kept_of(outputs, batch))
            return
        if self._apart is None:
            self._apart = self._make()
        self._apart.update(outputs, batch)

    def end(self, good: torch.Tensor) -> None:
        """Count the window if its step is `good` (0-dim bool on the device): it is applied."""
        if self._apart is not None:
            add_if(self._metrics, self._apart.state_dict(), good)
        if self._kept and self._whole is not None:  # after the sums: then this can't run out of memory
            self._whole.update_window(self._kept, good)


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
