"""Averaged weights, which are evaluated in place of those that are trained."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch

from mptui.engine.optim.buffers import BufferRow, RevertibleBuffers, WeightMemory
from mptui.engine.ranks.shards import as_shard, shard_of


class AveragedWeights(ABC):
    """An average of the trained weights of `model` over the steps of a run.

    Attributes:
        own_statistics: Whether BatchNorm's statistics are computed anew before the average is evaluated.
    """

    own_statistics = False

    def __init__(self, model: torch.nn.Module) -> None:
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._memory = WeightMemory(model, map(shard_of, self._trained.values()))
        self._weights = self._memory.tensors

    @abstractmethod
    def averages(self) -> list[torch.Tensor]:
        """Return the average of each trained parameter of the model."""

    @abstractmethod
    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Update the average if `good` (0-dim float32: 1 applied, 0 refused) is 1. Never syncs.

        `applied` (int64, one element) is the number of steps applied before this one.
        """

    @abstractmethod
    def follow(self, buffers: RevertibleBuffers) -> None:
        """Take over the model's buffers, which are accepted before each `update`."""

    def statistics(self) -> list[torch.Tensor]:
        """Return the averages of the model's buffers, if there are any, to be shared by ranks."""
        return []

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged weights into the model, at the same addresses; restore its own on exit."""
        self._memory.take_back()
        own = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        torch._foreach_copy_(self._weights, self.averages())
        try:
            yield
        finally:
            self._memory.take_back(values=False)
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

    Buffers of floating-point numbers, such as BatchNorm's statistics, are averaged in the same way: those of
    the last steps belong to other weights than an average that lags behind.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        super().__init__(model)
        self._average = [w.clone(memory_format=torch.preserve_format) for w in self._weights]
        self._buffers: RevertibleBuffers | None = None
        self._followed: list[BufferRow] = []
        self._statistics: list[torch.Tensor] = []
        self.decay = decay

    def averages(self) -> list[torch.Tensor]:
        """Return the EMA of each trained parameter."""
        return self._average

    def statistics(self) -> list[torch.Tensor]:
        """See `AveragedWeights.statistics`; a constant that is not finite, as of a mask, has no average."""
        return self._statistics

    def follow(self, buffers: RevertibleBuffers) -> None:
        """See `AveragedWeights.follow`."""
        known = dict(self._named_statistics(self._followed))
        self._buffers = buffers
        self._load_statistics(known)

    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Move the average towards the weights if the step was applied."""
        share = (9.0 / (applied + 10.0)).clamp_(min=1.0 - self.decay)
        rows = [row.accepted for row in self._rows()]
        if [len(row) for row in rows] != [len(average) for average in self._statistics]:
            # the network has made other buffers
            self._load_statistics(dict(self._named_statistics(self._followed)))
        averages = [*self._average, *self._statistics]
        difference = torch._foreach_sub([*self._weights, *rows], averages)
        torch._foreach_mul_(difference, (good * share).squeeze())
        torch._foreach_add_(averages, difference)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """See `AveragedWeights.in_place`; the same for buffers."""
        with super().in_place():
            for row, average in zip(self._rows(), self._statistics, strict=True):
                row.write(_known(average, row))
            try:
                yield
            finally:
                if self._buffers is not None:
                    self._buffers.restore()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages by the names of parameters and of buffers."""
        return {**super().state_dict(), **dict(self._named_statistics(self._rows()))}

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Restore from `state_dict`; what is missing in it starts from its current value."""
        for name, average, weight in zip(self._trained, self._average, self._weights, strict=True):
            average.copy_(shard_of(state_dict.get(name, weight)))
        if self._buffers is not None:
            self._buffers.refresh()
        self._load_statistics(state_dict)

    def _rows(self) -> list[BufferRow]:
        rows = self._buffers.rows if self._buffers is not None else []
        # numbers of 8 bits have no arithmetic
        return [r for r in rows if r.accepted.is_floating_point() and r.accepted.itemsize > 1]

    def _named_statistics(self, rows: list[BufferRow]) -> Iterator[tuple[str, torch.Tensor]]:
        for row, average in zip(rows, self._statistics, strict=True):
            yield from row.named(_known(average, row))

    def _load_statistics(self, known: Mapping[str, torch.Tensor]) -> None:
        rows = self._followed = self._rows()
        self._statistics = [row.accepted.clone() for row in rows]
        for row, average in zip(rows, self._statistics, strict=True):
            for name, part in row.named(average):
                if name in known and known[name].shape == part.shape:
                    part.copy_(known[name])


def _known(average: torch.Tensor, row: BufferRow) -> torch.Tensor:
    """Return the average of a row of buffers; of a value that was not finite, its current one."""
    return torch.where(average.isfinite(), average, row.accepted)
