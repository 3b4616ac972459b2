"""Exponential moving average of the weights, updated only by applied steps."""

import contextlib
from collections.abc import Iterator, Mapping

import torch


class WeightAverage:
    """Computes average = decay x average + (1 - decay) x weights after each applied step.

    After n steps the decay is at most (1 + n) / (10 + n): otherwise the initial random weights would dominate
    the average at first, and in a short run to its end.

    BatchNorm's statistics are not averaged: validation uses the current ones, as torch's `swa_utils` does
    without `use_buffers`.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._weights = [p.detach() for p in model.parameters()]
        self._names = [name for name, _ in model.named_parameters()]
        self._average = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        self.decay = decay

    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Update the average if `good` (0-dim float32: 1 applied, 0 refused) is 1. Never syncs.

        `applied` (int64, one element) is the number of steps applied before this one.
        """
        share = (9.0 / (applied + 10.0)).clamp_(min=1.0 - self.decay)
        difference = torch._foreach_sub(self._weights, self._average)
        torch._foreach_mul_(difference, (good * share).squeeze())
        torch._foreach_add_(self._average, difference)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged weights into the model, at the same addresses; restore its own on exit."""
        own = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages by parameter name."""
        return dict(zip(self._names, self._average, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Restore from `state_dict`; start from the current weights if it is empty."""
        for name, average, weight in zip(self._names, self._average, self._weights, strict=True):
            average.copy_(state_dict[name] if state_dict else weight)
