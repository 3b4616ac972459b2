"""SGD and AdamW in one kernel for all weights, which changes nothing when the step is refused.

The kernels are the ones behind `torch.optim` with `fused=True`; calling them with lists made once costs the
host a tenth of `Optimizer.step`. A refused step (found_inf = 1) changes neither weights nor state, without a
sync.

On a CPU the kernels copy each gradient that is not contiguous, and then never read the copy
(`grad.contiguous()` in torch's FusedSGDKernel.cpp and FusedAdamKernel.cpp): in channels last that takes
longer than the update. On a CPU they therefore get 1-D views, which are always contiguous.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from mptui.engine.optim.dense import in_a_row


class FusedOptimizer(torch.optim.Optimizer, ABC):
    """Base class of both. The learning rate `lr` is a 0-dim float32 tensor on the device."""

    state_names: tuple[str, ...] = ()
    _kernel: Callable[..., None]

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, defaults: dict[str, Any]) -> None:
        super().__init__(groups, {"lr": lr, "lr_scale": 1.0, **defaults})
        self._lr = lr
        self._scales = torch.tensor([group["lr_scale"] for group in self.param_groups], device=lr.device)
        self._is_scaled = any(group["lr_scale"] != 1.0 for group in self.param_groups)
        self._scaled = lr * self._scales
        # 0-dim views; without factors the rate itself, so that a step computes nothing more
        self._rates = list(self._scaled.unbind()) if self._is_scaled else [lr] * len(self.param_groups)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    name: torch.zeros_like(p, memory_format=torch.preserve_format)
                    for name in self.state_names
                }
        # detached aliases, so that no step needs torch.no_grad
        self._weights = [[_alias(p) for p in group["params"]] for group in self.param_groups]
        self._states = [
            [[_alias(self.state[p][name]) for p in group["params"]] for name in self.state_names]
            for group in self.param_groups
        ]
        self._in_rows = [
            [number for number, p in enumerate(group["params"]) if _must_be_a_row(p)]
            for group in self.param_groups
        ]

    def update(self, found_inf: torch.Tensor) -> None:
        """Update all weights, unless `found_inf` (0-dim float32) is 1. Never syncs."""
        if self._is_scaled:
            torch.mul(self._lr, self._scales, out=self._scaled)
        lists = zip(self.param_groups, self._rates, self._weights, self._states, self._in_rows, strict=True)
        for group, rate, weights, states, in_rows in lists:
            grads = [p.grad for p in group["params"]]
            for number in in_rows:  # autograd gives a gradient its weight's strides
                if (grad := grads[number]) is not None:
                    grads[number] = in_a_row(grad)
            if any(grad is None for grad in grads):  # the step did not use a part of the network
                used = [i for i, grad in enumerate(grads) if grad is not None]
                weights, grads = [weights[i] for i in used], [grads[i] for i in used]
                states = [[state[i] for i in used] for state in states]
            if grads:
                more, numbers = self._arguments(group, states)
                self._kernel(
                    weights,
                    grads,
                    *more,
                    lr=rate,
                    weight_decay=group["weight_decay"],
                    maximize=False,
                    grad_scale=None,
                    found_inf=found_inf,
                    **numbers,
                )

    @abstractmethod
    def _arguments(
        self, group: dict[str, Any], states: list[list[torch.Tensor]]
    ) -> tuple[list[list[torch.Tensor]], dict[str, Any]]:
        """Return the kernel's tensor lists after weights and gradients, and its scalar arguments.

        Args:
            group: A parameter group of the optimizer.
            states: Lists of state tensors parallel to the weights, in the order of `state_names`.
        """


class FusedSGD(FusedOptimizer):
    """SGD with momentum as in torch.optim.SGD (no dampening, no Nesterov), with buffers initially zero."""

    # allocated without momentum too: a switch of profile may turn it on during a run
    state_names = ("momentum_buffer",)
    _kernel = staticmethod(torch._fused_sgd_)

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, momentum: float) -> None:
        super().__init__(groups, lr, {"momentum": momentum, "weight_decay": 0.0})

    def _arguments(
        self, group: dict[str, Any], states: list[list[torch.Tensor]]
    ) -> tuple[list[list[torch.Tensor]], dict[str, Any]]:
        numbers = {
            "momentum": group["momentum"],
            "dampening": 0.0,
            "nesterov": False,
            "is_first_step": False,
        }
        return [states[0] if group["momentum"] else []], numbers


class FusedAdamW(FusedOptimizer):
    """AdamW (Loshchilov & Hutter 2019) as in torch.optim.AdamW, with one step count for all weights."""

    state_names = ("exp_avg", "exp_avg_sq")
    _kernel = staticmethod(torch._fused_adamw_)

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor) -> None:
        super().__init__(groups, lr, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})
        self.steps = torch.zeros((), device=lr.device)
        for p in self.state:
            self.state[p]["step"] = self.steps

    def update(self, found_inf: torch.Tensor) -> None:
        """Count and apply the step; undo the count if the step was refused."""
        self.steps.add_(1)
        super().update(found_inf)
        self.steps.sub_(found_inf)

    def _arguments(
        self, group: dict[str, Any], states: list[list[torch.Tensor]]
    ) -> tuple[list[list[torch.Tensor]], dict[str, Any]]:
        beta1, beta2 = group["betas"]
        numbers = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "amsgrad": False}
        return [*states, [], [self.steps] * len(states[0])], numbers


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    return in_a_row(tensor.detach()) if _must_be_a_row(tensor) else tensor.detach()


def _must_be_a_row(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and not tensor.is_contiguous()
