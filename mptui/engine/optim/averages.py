"""Averages of weights: EMA, and the schedule-free optimizers (Defazio et al. 2024)."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from typing_extensions import override

from mptui.engine.optim.buffers import BufferRow, RevertibleBuffers, WeightMemory
from mptui.engine.optim.fused import STEP, FusedOptimizer, GroupTensors, Tensors, average_in, descend
from mptui.engine.ranks.group import as_shard, shard_of

# Averaged weights, which are evaluated in place of those that are trained
# ------------------------------------------------------------------------


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

    @override
    def statistics(self) -> list[torch.Tensor]:
        """A constant that is not finite, as of a mask, has no average."""
        return self._statistics

    @override
    def follow(self, buffers: RevertibleBuffers) -> None:
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
    @override
    def in_place(self) -> Iterator[None]:
        """The same for buffers."""
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


# Schedule-free SGD and AdamW (Defazio et al. 2024, "The Road Less Scheduled")
# ----------------------------------------------------------------------------
# Plain SGD, or AdamW without momentum, moves z. x is the average of all z so far, weighted by the square of
# the highest rate so far, and is what is evaluated. Gradients are those at y = (1 - beta) z + beta x, the
# network's weights in training. Averaging does the work of a decaying rate, and needs no end of the run.
#
# y and z are stored; x follows from them.


class ScheduleFree(FusedOptimizer):
    """Base class of both. Weight decay is that of y, as in the authors' implementation."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, defaults: dict[str, Any]) -> None:
        super().__init__(groups, lr, defaults)
        device = lr.device
        # a sum of a million equal weights needs more than 24 bits, which mps does not have
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._highest_rate = torch.zeros((), device=device)
        self._total = torch.zeros((), dtype=wide, device=device)
        self._share = torch.zeros((), device=device)
        for p, state in self.state.items():
            state["z"].copy_(p.detach())
            state |= {"highest_rate": self._highest_rate, "total": self._total}

    def load(self, states: Mapping[torch.Tensor, Mapping[str, torch.Tensor]]) -> None:
        """Copy the state of weights into theirs; those that are missing start from their current values."""
        super().load(states)
        for p in self.state.keys() - states.keys():
            self.state[p]["z"].copy_(p.detach())

    def update(self, found_inf: torch.Tensor) -> None:
        """Update the counts and all weights, unless `found_inf` is 1."""
        applied = 1 - found_inf
        torch.maximum(self._highest_rate, self._lr * applied, out=self._highest_rate)
        weight = self._highest_rate.to(self._total.dtype).square() * applied
        self._total.add_(weight)
        # 0 while the rate is
        self._share.copy_(weight / self._total.clamp(min=torch.finfo(self._total.dtype).tiny))
        super().update(found_inf)

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        self._normalize(part, grads, found_inf)
        if group["weight_decay"]:
            torch._foreach_add_(grads, weights, alpha=group["weight_decay"])
        average_in(weights, states[0], self._share, found_inf)
        descend(weights, grads, rate * (1 - self.beta(group) * (1 - self._share)), found_inf)
        descend(states[0], grads, rate, found_inf)

    @abstractmethod
    def beta(self, group: dict[str, Any]) -> float:
        """Return the share of x in y."""

    @abstractmethod
    def _normalize(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        """Turn the gradients into the direction of the update, in place; update other state than z."""


class ScheduleFreeSGD(ScheduleFree):
    """Schedule-free SGD; `momentum` is beta."""

    state_names = ("z", STEP)

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, momentum: float) -> None:
        super().__init__(groups, lr, {"momentum": momentum})

    def beta(self, group: dict[str, Any]) -> float:
        """Return the share of x in y."""
        return float(group["momentum"])

    def _normalize(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        pass


class ScheduleFreeAdamW(ScheduleFree):
    """Schedule-free AdamW; the first of the `betas` is beta."""

    state_names = ("z", "exp_avg_sq", STEP)

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, lr, {"betas": betas, "eps": eps})

    def beta(self, group: dict[str, Any]) -> float:
        """Return the share of x in y."""
        return float(group["betas"][0])

    def _normalize(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        (_, squares, steps), beta2, eps = part.states, part.group["betas"][1], part.group["eps"]
        average_in(squares, torch._foreach_mul(grads, grads), 1 - beta2, found_inf)
        sizes = torch._foreach_sqrt(squares)
        # 1 - beta2^step, without its cancellation in float32
        corrections = {
            step: (-torch.expm1(step * math.log(beta2)) if beta2 else torch.ones_like(step)).rsqrt()
            for step in dict.fromkeys(steps)
        }
        one, *others = corrections.values()
        torch._foreach_mul_(sizes, [corrections[step] for step in steps] if others else one)
        torch._foreach_add_(sizes, eps)
        torch._foreach_div_(grads, sizes)


class ScheduleFreeAverage(AveragedWeights):
    """The average x of a schedule-free optimizer, computed from y and z when it is needed."""

    own_statistics = True

    def __init__(self, model: torch.nn.Module, optimizer: ScheduleFree) -> None:
        super().__init__(model)
        self._parameters = [shard_of(p) for p in self._trained.values()]
        self._optimizer = optimizer

    def follow(self, buffers: RevertibleBuffers) -> None:
        """Do nothing: statistics are computed anew."""

    def averages(self) -> list[torch.Tensor]:
        """Return x of each trained parameter."""
        optimizer = self._optimizer
        found = {
            p: torch.lerp(p.detach(), optimizer.state[p]["z"], 1 - 1 / optimizer.beta(group))
            for group in optimizer.param_groups
            for p in group["params"]
        }
        return [found[p] for p in self._parameters]

    def update(self, good: torch.Tensor, applied: torch.Tensor) -> None:
        """Do nothing: the optimizer has updated y and z."""

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Do nothing: y and z are restored with the model and the optimizer."""
