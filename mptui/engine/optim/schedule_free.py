"""Schedule-free SGD and AdamW (Defazio et al. 2024, "The Road Less Scheduled").

Plain SGD, or AdamW without momentum, moves z. x is the average of all z so far, weighted by the square of the
highest rate so far, and is what is evaluated. Gradients are those at y = (1 - beta) z + beta x, the network's
weights in training. Averaging does the work of a decaying rate, and needs no end of the run.

y and z are stored; x follows from them.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mptui.engine.optim.buffers import RevertibleBuffers
from mptui.engine.optim.ema import AveragedWeights
from mptui.engine.optim.fused import STEP, FusedOptimizer, GroupTensors, Tensors, average_in, descend
from mptui.engine.ranks.shards import shard_of


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
