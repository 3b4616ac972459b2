"""Optimizers that update all weights in a few kernels, and nothing when the step is refused."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from mptui.engine.ranks.group import ALONE, Ranks
from mptui.torch_private import fused_adam_, fused_adamw_, fused_sgd_, in_one_row, nearest_orthogonal

# Optimizers that update all weights in a few kernels, and change nothing when the step is refused
# ------------------------------------------------------------------------------------------------
# The kernels are the ones behind `torch.optim` with `fused=True`; calling them with lists made once costs
# the host a tenth of `Optimizer.step`. A refused step (found_inf = 1) changes neither weights nor state,
# without a sync. `descend` and `average_in` are the kernel of SGD, for optimizers that have none of their
# own. Arithmetic with (1 - found_inf) would not do: the gradients of a refused step may be NaN, and NaN x 0
# is NaN.
#
# On a CPU the kernels copy each gradient that is not contiguous, and then never read the copy
# (`grad.contiguous()` in torch's FusedSGDKernel.cpp and FusedAdamKernel.cpp): in channels last that takes
# longer than the update. On a CPU they therefore get 1-D views, which are always contiguous.

STEP = "step"
"""The state that counts the steps of a weight, 0-dim float32: one for all weights until layers are thawed, or
a step does not use all of the network."""

Tensors = tuple[torch.Tensor, ...] | list[torch.Tensor]
View = Callable[[torch.Tensor], torch.Tensor]


class GroupTensors(NamedTuple):
    """A parameter group of an optimizer, and what a step updates of it, in parallel lists."""

    group: dict[str, Any]
    rate: torch.Tensor
    """The learning rate of the group, 0-dim float32."""
    weights: Tensors
    states: Sequence[Tensors]
    """Lists of state tensors, in the order of `FusedOptimizer.state_names`. `STEP` counts this step, too."""


class FusedOptimizer(torch.optim.Optimizer, ABC):
    """Base class. The learning rate `lr` is a 0-dim float32 tensor on the device."""

    state_names: tuple[str, ...] = ()

    def __init__(self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, defaults: dict[str, Any]) -> None:
        super().__init__(groups, {"lr": lr, "lr_scale": 1.0, "weight_decay": 0.0, **defaults})
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
                    for name in self._state_names(group)
                    if name != STEP
                }
        self._count_from({})
        self._collect()

    def load(self, states: Mapping[torch.Tensor, Mapping[str, torch.Tensor]]) -> None:
        """Copy the state of weights into theirs; those that are missing have not been trained yet."""
        for p, state in states.items():
            for name, value in state.items():
                if name != STEP:
                    self.state[p][name].copy_(value)
        self._count_from({p: float(state[STEP]) for p, state in states.items() if STEP in state})
        self._collect()

    def _count_from(self, steps: Mapping[torch.Tensor, float]) -> None:
        """Count the steps of each weight from `steps`; weights with equal counts share a counter."""
        counters: dict[float, torch.Tensor] = {}
        for group in self.param_groups:
            for p in group["params"] if STEP in self._state_names(group) else ():
                count = steps.get(p, 0.0)
                counters.setdefault(count, torch.tensor(count, device=self._lr.device))
                self.state[p][STEP] = counters[count]
        self._counters = list(counters.values())

    def _count_apart(self) -> list[torch.Tensor]:
        """Return the counters of the weights with gradients, which then count for no others."""
        used: dict[int, torch.Tensor] = {}
        unused: list[dict[str, torch.Tensor]] = []
        for p, state in self.state.items():
            if STEP in state and p.grad is not None:
                used[id(state[STEP])] = state[STEP]
            elif STEP in state:
                unused.append(state)
        shared = [state for state in unused if id(state[STEP]) in used]
        apart = {number: used[number].clone() for number in {id(state[STEP]) for state in shared}}
        for state in shared:
            state[STEP] = apart[id(state[STEP])]
        if shared:
            self._counters += apart.values()
            self._collect()
        return list(used.values())

    def _collect(self) -> None:
        """Make the lists that a step needs once: the tensors of each group, and its views of gradients."""
        self._parts: list[tuple[GroupTensors, list[tuple[int, View]]]] = []
        for group, rate in zip(self.param_groups, self._rates, strict=True):
            viewed = [(p, self._view(group, p)) for p in group["params"]]
            # detached aliases, so that no step needs torch.no_grad
            weights = [view(p.detach()) for p, view in viewed]
            states = [
                [self.state[p][name] if name == STEP else view(self.state[p][name]) for p, view in viewed]
                for name in self._state_names(group)
            ]
            views = [(number, view) for number, (_, view) in enumerate(viewed) if view is not _as_it_is]
            self._parts.append((GroupTensors(group, rate, weights, states), views))

    def update(self, found_inf: torch.Tensor) -> None:
        """Update all weights, unless `found_inf` (0-dim float32) is 1; never syncs. Gradients may change."""
        if self._is_scaled:
            torch.mul(self._lr, self._scales, out=self._scaled)
        counters, parts = self._counters, list(map(self._used, self._parts))
        if counters and any(len(grads) < len(part.group["params"]) for part, grads in parts):
            counters, parts = self._count_apart(), list(map(self._used, self._parts))
        for counter in counters:
            counter.add_(1)
        for part, grads in parts:
            if grads:
                self._update_group(part, grads, found_inf)
        for counter in counters:  # a refused step does not count
            counter.sub_(found_inf)

    @staticmethod
    def _used(collected: tuple[GroupTensors, list[tuple[int, View]]]) -> tuple[GroupTensors, Tensors]:
        """Return what a step updates of a group, and its gradients: it may not use a part of the network."""
        part, views = collected
        grads = [p.grad for p in part.group["params"]]
        for number, view in views:  # autograd gives a gradient its weight's strides
            if (grad := grads[number]) is not None:
                grads[number] = view(grad)
        used = [i for i, grad in enumerate(grads) if grad is not None]
        if len(used) == len(grads):
            return part, grads
        weights = [part.weights[i] for i in used]
        states = [[state[i] for i in used] for state in part.states]
        return part._replace(weights=weights, states=states), [grads[i] for i in used]

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of the state tensors of each parameter of a group."""
        return self.state_names

    def _view(self, group: dict[str, Any], parameter: torch.Tensor) -> View:
        """Return the view of a parameter of a group, its gradient and its state that is updated."""
        must_be_a_row = parameter.device.type == "cpu" and not parameter.is_contiguous()
        return in_a_row if must_be_a_row else _as_it_is

    @abstractmethod
    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        """Update the weights of a group that have gradients, unless `found_inf` is 1.

        Args:
            part: These weights, and their state.
            grads: Their gradients, in the same layout.
            found_inf: 0-dim float32.
        """


def descend(
    weights: Tensors,
    directions: Tensors,
    rate: torch.Tensor | float,
    found_inf: torch.Tensor,
    *,
    weight_decay: float = 0.0,
) -> None:
    """Compute weights -= rate x (directions + weight_decay x weights), unless `found_inf` is 1."""
    fused_sgd_(
        weights,
        directions,
        [],
        **_PLAIN,
        lr=rate,
        weight_decay=weight_decay,
        maximize=False,
        found_inf=found_inf,
    )


def average_in(
    averages: Tensors, values: Tensors, share: torch.Tensor | float, found_inf: torch.Tensor
) -> None:
    """Compute averages += share x (values - averages), unless `found_inf` is 1."""
    fused_sgd_(averages, values, [], **_PLAIN, lr=share, weight_decay=1.0, maximize=True, found_inf=found_inf)


_PLAIN: dict[str, Any] = {
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "is_first_step": False,
    "grad_scale": None,
}


class FusedSGD(FusedOptimizer):
    """SGD with momentum as in torch.optim.SGD (no dampening), with buffers initially zero."""

    # allocated without momentum too: a switch of profile may turn it on during a run
    state_names = ("momentum_buffer",)

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, momentum: float, nesterov: bool
    ) -> None:
        super().__init__(groups, lr, {"momentum": momentum, "nesterov": nesterov})

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        fused_sgd_(
            weights,
            grads,
            states[0] if group["momentum"] else [],
            lr=rate,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            dampening=0.0,
            is_first_step=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )


class FusedAdamW(FusedOptimizer):
    """AdamW (Loshchilov & Hutter 2019) as in torch.optim.AdamW."""

    state_names = ("exp_avg", "exp_avg_sq", STEP)
    _kernel = staticmethod(fused_adamw_)

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, lr, {"betas": betas, "eps": eps})

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        (averages, squares, steps), (beta1, beta2) = states, group["betas"]
        self._kernel(
            weights,
            grads,
            averages,
            squares,
            [],
            steps,
            lr=rate,
            weight_decay=group["weight_decay"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )


class FusedAdam(FusedAdamW):
    """Adam (Kingma & Ba 2015) as in torch.optim.Adam: weight decay is part of the gradient."""

    _kernel = staticmethod(fused_adam_)


class FusedLion(FusedOptimizer):
    """Lion (Chen et al. 2023, algorithm 2): moves each weight by the sign of an average of its gradients."""

    state_names = ("exp_avg",)

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: torch.Tensor, *, betas: tuple[float, float]
    ) -> None:
        super().__init__(groups, lr, {"betas": betas})

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        (averages,), (beta1, beta2) = states, group["betas"]
        signs = torch._foreach_lerp(averages, grads, 1 - beta1)
        torch._foreach_sign_(signs)
        descend(weights, signs, rate, found_inf, weight_decay=group["weight_decay"])
        average_in(averages, grads, 1 - beta2, found_inf)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# L2 norm of all gradients
# ------------------------
# On a CPU large gradients are squared and summed as soon as the backward pass has computed them, while they
# are in the processor's cache: reading them again at the end takes 2 % of a ResNet-18's step.

LARGE = 1 << 13
"""Elements from which a gradient is worth a separate call."""

CACHED = 1 << 22
"""Elements that fit in a processor's cache after the backward pass, where norm and update then find them:
models with fewer parameters don't need sums during the backward pass."""


@dataclass(slots=True)
class _Noted:
    """A gradient, its version, and the sum of its squares (0-dim) at that version."""

    grad: torch.Tensor
    version: int
    squares: torch.Tensor

    def is_of(self, grad: torch.Tensor) -> bool:
        """Whether this is of a gradient as it is now."""
        return self.grad is grad and self.version == grad._version


class GradientNorm:
    """Computes the norm of the gradients of parameters.

    Args:
        parameters: Dense, all on one device.
        early: On a CPU: square large gradients during the backward pass, if the model is large. A gradient
            that changes after that is detected, and read again.
        shared_by: The ranks whose shards of the gradients make up the norm.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, early: bool, shared_by: Ranks = ALONE) -> None:
        self._parameters = parameters
        self._shared_by = shared_by
        self._early = early
        self._noted: dict[int, _Noted] = {}
        there_are_many = early and sum(parameter.numel() for parameter in parameters) >= CACHED
        # hooks must not refer to this object or the parameters: a reference cycle would keep them alive
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, self._noted, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(parameters)
            if there_are_many and parameter.numel() >= LARGE
        ]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self.forget()

    def forget(self) -> None:
        """Drop references to gradients that were cleared."""
        self._noted.clear()

    def total(self) -> torch.Tensor:
        """Return the norm of all current gradients (at least one): 0-dim float32. Never syncs."""
        if not self._early:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)))
            return norm if self._shared_by.is_alone else self._shared_by.sum_(norm.square()).sqrt_()
        rest, squares = [], []
        for number, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is None:
                continue
            noted = self._noted.get(number)
            if noted is not None and noted.is_of(grad):
                squares.append(noted.squares)
            elif grad.numel() >= LARGE:
                squares.append(_squares(in_a_row(grad)))
            else:
                rest.append(grad if grad.is_contiguous() else in_a_row(grad))
        if rest:  # one sum over many small gradients is cheaper than many sums
            squares.append(_squares(in_one_row(rest)))
        total = squares[0] if len(squares) == 1 else torch.stack(squares).sum()
        return total.sqrt()


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 1-D view of a dense tensor in memory order, whatever the order of its axes."""
    return tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,))


def _squares(row: torch.Tensor) -> torch.Tensor:
    return torch.dot(row, row)


def _note(noted: dict[int, _Noted], number: int, parameter: torch.Tensor) -> None:
    grad = parameter.grad
    assert grad is not None, "it was just added to"
    noted[number] = _Noted(grad, grad._version, _squares(in_a_row(grad)))


# Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for the matrices of hidden layers
# ------------------------------------------------------------------------------------------------------
# The momentum of each matrix is replaced by an approximation of the nearest orthogonal matrix, by torch's
# Newton-Schulz iteration in bfloat16. All other parameters are trained by AdamW.


class Muon(FusedAdamW):
    """Muon as in torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`, and AdamW for the other parameters.

    The update of an A x B matrix is scaled by 0.2 sqrt(max(A, B)), so that it is as large as AdamW's (Liu et
    al. 2025, "Muon is Scalable for LLM Training"): one rate and one weight decay suit both. A convolution of
    shape [out, in, height, width] is a matrix of shape [out, in x height x width], its columns in the order
    in memory, which makes no difference but for rounding in bfloat16.

    Args:
        groups: Parameter groups; in one with `hidden`, all are matrices of hidden layers.
        lr: 0-dim float32 tensor on the device.
        momentum: Of the matrices.
        nesterov: Nesterov momentum of the matrices.
        betas: Of AdamW.
        eps: Of AdamW.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: torch.Tensor,
        *,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, lr, betas=betas, eps=eps)
        for group in self.param_groups:
            group |= {"momentum": momentum, "nesterov": nesterov}

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["hidden"] else super()._state_names(group)

    def _view(self, group: dict[str, Any], parameter: torch.Tensor) -> View:
        return _as_matrix if group["hidden"] else super()._view(group, parameter)

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        if not group["hidden"]:
            super()._update_group(part, grads, found_inf)
            return
        (buffers,), momentum = states, group["momentum"]
        average_in(buffers, grads, 1 - momentum, found_inf)
        averages = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        updates = [_orthogonal(average) for average in averages]
        torch._foreach_mul_(updates, [0.2 * math.sqrt(max(update.shape)) for update in updates])
        descend(weights, updates, rate, found_inf, weight_decay=group["weight_decay"])


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    return tensor.as_strided((rows, columns), (columns, 1))


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    found = nearest_orthogonal(matrix)
    # a tall one is transposed, and the kernel reads memory in order
    return found.to(torch.float32, memory_format=torch.contiguous_format)
