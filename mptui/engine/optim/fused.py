"""SGD and AdamW in one kernel for all weights, which leaves them alone when the step is refused.

The kernels are the ones behind `torch.optim` with `fused=True`; calling them with lists made once costs the
host a tenth of `Optimizer.step`. A refused step (found_inf = 1) changes neither weights nor state, and nobody
waits for the device to know.

On a CPU the kernels first copy each gradient whose axes are not in the usual order, and then never look at
the copy (`grad.contiguous()` in torch's FusedSGDKernel.cpp and FusedAdamKernel.cpp): in channels last that
takes longer than the update. So there they are given rows of numbers, which need no order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from mptui.engine.optim.dense import in_a_row


class FusedOptimizer(torch.optim.Optimizer, ABC):
    """What the two have in common. The rate is one 0-dim float32 tensor on the device, `lr`."""

    state_names: tuple[str, ...] = ()
    _kernel: Callable[..., None]

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
        """Move all weights by their gradients, unless `found_inf` (0-dim float32) is 1. Never syncs."""
        lists = zip(self.param_groups, self._weights, self._states, self._in_rows, strict=True)
        for group, weights, states, in_rows in lists:
            grads = [p.grad for p in group["params"]]
            for number in in_rows:  # autograd gave it the weight's own order of axes
                if (grad := grads[number]) is not None:
                    grads[number] = in_a_row(grad)
            if any(grad is None for grad in grads):  # a part of the network that this step did not use
                used = [i for i, grad in enumerate(grads) if grad is not None]
                weights, grads = [weights[i] for i in used], [grads[i] for i in used]
                states = [[state[i] for i in used] for state in states]
            if grads:
                more, numbers = self._arguments(group, states)
                self._kernel(
                    weights,
                    grads,
                    *more,
                    lr=self._lr,
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
        """The kernel's own lists, beside those of weights and gradients, and its own numbers.

        Args:
            group: A parameter group of the optimizer.
            states: Lists beside the weights', by `state_names`.
        """


class FusedSGD(FusedOptimizer):
    """Momentum as torch.optim.SGD has it (no dampening, no Nesterov), from buffers that begin at zero."""

    # made without momentum too: another profile may bring it in the middle of a run
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
    """AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW has it; the step count is one for all weights."""

    state_names = ("exp_avg", "exp_avg_sq")
    _kernel = staticmethod(torch._fused_adamw_)

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
