"""SGD and AdamW in one kernel for all weights, which leaves them alone when the step is refused.

The kernels are the ones behind `torch.optim` with `fused=True`; calling them with lists made once costs the
host a tenth of `Optimizer.step`. A refused step (found_inf = 1) changes neither weights nor state, and nobody
waits for the device to know.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch


class FusedOptimizer(torch.optim.Optimizer, ABC):
    """What the two have in common. The rate is one 0-dim float32 tensor on the device, `lr`."""

    state_names: tuple[str, ...] = ()

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, defaults: dict[str, Any]) -> None:
        super().__init__(groups, {"lr": lr, **defaults})
        self._lr = lr
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    name: torch.zeros_like(p, memory_format=torch.preserve_format)
                    for name in self.state_names
                }
        # aliases that need no gradient, so that no step has to say so
        self._weights = [[p.detach() for p in group["params"]] for group in self.param_groups]
        self._states = [
            [[self.state[p][name] for p in group["params"]] for name in self.state_names]
            for group in self.param_groups
        ]

    def update(self, found_inf: torch.Tensor) -> None:
        """Move all weights by their gradients, unless `found_inf` (0-dim float32) is 1. Never syncs."""
        for group, weights, states in zip(self.param_groups, self._weights, self._states, strict=True):
            grads = [p.grad for p in group["params"]]
            if any(grad is None for grad in grads):  # a part of the network that this step did not use
                used = [i for i, grad in enumerate(grads) if grad is not None]
                weights, grads = [weights[i] for i in used], [grads[i] for i in used]
                states = [[state[i] for i in used] for state in states]
            if grads:
                self._kernel(group, weights, grads, states, found_inf)

    @abstractmethod
    def _kernel(
        self,
        group: dict[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        states: list[list[torch.Tensor]],
        found_inf: torch.Tensor,
    ) -> None:
        """Update `weights` by `grads` in one call; `states` are lists beside them, by `state_names`."""


class FusedSGD(FusedOptimizer):
    """Momentum as torch.optim.SGD has it (no dampening, no Nesterov), from buffers that begin at zero."""

    # made without momentum too: another preset may bring it in the middle of a run
    state_names = ("momentum_buffer",)

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, momentum: float) -> None:
        super().__init__(groups, lr, {"momentum": momentum, "weight_decay": 0.0})

    def _kernel(
        self,
        group: dict[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        states: list[list[torch.Tensor]],
        found_inf: torch.Tensor,
    ) -> None:
        torch._fused_sgd_(
            weights,
            grads,
            states[0] if group["momentum"] else [],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=self._lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=found_inf,
        )


class FusedAdamW(FusedOptimizer):
    """AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW has it; the step count is one for all weights."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor) -> None:
        super().__init__(groups, lr, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})
        self.steps = torch.zeros((), device=lr.device)
        for p in self.state:
            self.state[p]["step"] = self.steps

    def update(self, found_inf: torch.Tensor) -> None:
        """Count the step, take it, and take the count back if it was refused."""
        self.steps.add_(1)
        super().update(found_inf)
        self.steps.sub_(found_inf)

    def _kernel(
        self,
        group: dict[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        states: list[list[torch.Tensor]],
        found_inf: torch.Tensor,
    ) -> None:
        torch._fused_adamw_(
            weights,
            grads,
            states[0],
            states[1],
            [],
            [self.steps] * len(weights),
            lr=self._lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )
