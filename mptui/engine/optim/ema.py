"""Averaged weights, which are evaluated in place of those that are trained."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch

from mptui.engine.ranks.shards import as_shard, shard_of


class AveragedWeights(ABC):
    """An average of the trained weights of `model` over the steps of a run.

    Attributes:
        own_statistics: Whether BatchNorm's statistics are computed anew before the average is evaluated.
    """

    own_statistics = False

    def __init__(self, model: torch.nn.Module) -> None:
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._weights = [shard_of(p).detach() for p in self._trained.values()]

    @abstractmethod
    def averages(self) -> list[torch.Tensor]:
        """Return the average of each trained parameter of the model."""

    @abstractmethod
    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Update the average if `good` (0-dim float32: 1 applied, 0 refused) is 1. Never syncs.

        `applied` (int64, one element) is the number of steps applied before this one.
        """

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged weights into the model, at the same addresses; restore its own on exit."""
        own = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        torch._foreach_copy_(self._weights, self.averages())
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages by parameter name."""
        named = zip(self._trained.items(), self.averages(), strict=True)
        return {name: as_shard(average, p) for (name, p), average in named}

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Restore from a result of `state_dict`, which is empty if the checkpoint has none."""


class WeightAverage(AveragedWeights):
    """Exponential moving average (EMA): decay x average + (1 - decay) x weights after each applied step.

    After n steps the decay is at most (1 + n) / (10 + n): otherwise the initial random weights would dominate
    the average at first, and in a short run to its end.

    BatchNorm's statistics are not averaged: validation uses the current ones, as torch's `swa_utils` does
    without `use_buffers`.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        super().__init__(model)
        self._average = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        self.decay = decay

    def averages(self) -> list[torch.Tensor]:
        """Return the EMA of each trained parameter."""
        return self._average

    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Move the average towards the weights if the step was applied."""
        share = (9.0 / (applied + 10.0)).clamp_(min=1.0 - self.decay)
        difference = torch._foreach_sub(self._weights, self._average)
        torch._foreach_mul_(difference, (good * share).squeeze())
        torch._foreach_add_(self._average, difference)

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Restore from `state_dict`; weights that are missing in it start from their current values."""
        for name, average, weight in zip(self._trained, self._average, self._weights, strict=True):
            average.copy_(shard_of(state_dict.get(name, weight)))
