"""Metrics over the samples of all ranks."""

from collections.abc import Callable

import torch

from mptui.data.core.batch import Batch
from mptui.engine.ranks.group import Ranks
from mptui.tasks.base import Metrics

SCORES = "scores"
"""The part of a metric's state that has a row for each sample: those of ranks follow each other."""


class SummedMetrics:
    """The metrics of all ranks: each adds its own samples, and each gets the result of all.

    Everything but `update` and `reset` waits for the other ranks.

    Args:
        make: Makes the metrics of one process, on `device`.
        ranks: The ranks.
        device: The device.

    Attributes:
        own: The metrics of this process.
    """

    def __init__(self, make: Callable[[], Metrics], ranks: Ranks, device: torch.device) -> None:
        self.own, self._whole, self._ranks, self._device = make(), make(), ranks, device

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`."""
        self.own.update(outputs, batch)

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        return self._summed().compute()

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """See `Metrics.per_class`."""
        return self._summed().per_class()

    def confusion(self) -> torch.Tensor | None:
        """See `Metrics.confusion`."""
        return self._summed().confusion()

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self.own.reset()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the sums over all ranks."""
        return summed_state(self.own, self._ranks, self._device)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the sums: rank 0 has them all, the others none."""
        self.own.reset()
        if self._ranks.is_first:
            self.own.load_state_dict(state)

    def _summed(self) -> Metrics:
        self._whole.load_state_dict(self.state_dict())
        return self._whole


def summed_state(metrics: Metrics, ranks: Ranks, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of the metrics of all ranks, from those of this rank on `device`.

    A rank that has had no sample may lack a sum that others have, where a task finds its metrics by them.
    """
    state = metrics.state_dict()
    ranks.meet()
    for forms in ranks.exchange({name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}):
        for name, (shape, dtype) in forms.items():
            state.setdefault(name, torch.zeros(shape, dtype=dtype, device=device))
    names = sorted(state)  # the order of the others
    sums = {name: state[name].to(device, copy=True) for name in names if name != SCORES}
    ranks.sum_all_(sums.values())
    return {
        name: sums[name].to(state[name].device)
        if name in sums
        else torch.cat(ranks.exchange(state[name].cpu())).to(state[name].device)
        for name in names
    }


def metrics_of(make: Callable[[], Metrics], ranks: Ranks, device: torch.device) -> Metrics:
    """Return metrics over the samples of all ranks; `make` makes those of one."""
    return make() if ranks.is_alone else SummedMetrics(make, ranks, device)
