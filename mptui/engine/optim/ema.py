"""An exponential moving average of the weights, which moves only when they do."""

import contextlib
from collections.abc import Iterator, Mapping

import torch


class WeightAverage:
    """average = decay x average + (1 - decay) x weights, after each applied step.

    After n steps the decay is (1 + n) / (10 + n), if that is less: at first the average would else be that
    of random weights, and in a short run to its end.

    BatchNorm's statistics are not averaged: validation uses the live ones, as torch's `swa_utils` does
    without `use_buffers`.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._weights = [p.detach() for p in model.parameters()]
        self._names = [name for name, _ in model.named_parameters()]
        self._average = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        self.decay = decay

    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Move by one step where `good` (0-dim float32: 1 applied, 0 refused) says so. Never syncs.

        `applied` (int64, one number) is the count of steps before this one.
        """
        share = (9.0 / (applied + 10.0)).clamp_(min=1.0 - self.decay)
        difference = torch._foreach_sub(self._weights, self._average)
        torch._foreach_mul_(difference, (good * share).squeeze())
        torch._foreach_add_(self._average, difference)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside, at the same addresses, and its own again after."""
        own = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameter name -> average."""
        return dict(zip(self._names, self._average, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Go on from `state_dict`; from the weights as they are now where no average was kept."""
        for name, average, weight in zip(self._names, self._average, self._weights, strict=True):
            average.copy_(state_dict[name] if state_dict else weight)
