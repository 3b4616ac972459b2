"""The optimizers by name, as `training.optimizer` has them. torch is imported when one is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Groups = list[dict[str, Any]]
"""Parameter groups of `torch.optim`: `params`, their `weight_decay`, and `lr_scale`, a factor of the rate.
See `mptui.engine.optim.optimizers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An optimizer.

    Attributes:
        build: Called as `build(groups, lr, fused=..., **settings)`; `lr` is a 0-dim float32 tensor on the
            device. A `mptui.engine.optim.fused.FusedOptimizer` reads `lr` at each step, multiplies it by the
            `lr_scale` of each group, and skips a step on the device where `found_inf` is 1. For any other
            `torch.optim.Optimizer` the host sets the `lr` of its groups and skips the step, at the price of
            one sync a step.
        state_bytes: Bytes of state for each weight.
        matrix_state_bytes: The same for the matrices of hidden layers, if the optimizer has a way of its own
            with them, and needs them whole; its parameter groups have `hidden`, which says which they are.
        has_fused: Whether there are two, and `fused` says which: with it, `build` returns a `FusedOptimizer`.
        settings: The keys of [training] that `build` takes, and the value of each where it is unset. Its
            parameter groups have the same keys, so that a switch to another profile can change them.
        averages: Whether it averages the weights itself: there is no EMA, and the rate need not decay.
        lr: Its usual rate, where the schema's default is none; None: it is.
        momentum: Name of the state that sums up gradients, which the learning rate multiplies. It is scaled
            down where a switch to another profile raises the rate by much. None: there is no such state.
    """

    build: "Callable[..., torch.optim.Optimizer]"
    state_bytes: int
    matrix_state_bytes: int | None = None
    has_fused: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    averages: bool = False
    lr: float | None = None
    momentum: str | None = None

    def state_of(self, weights: int, matrices: int) -> int:
        """Return the bytes of state for weights, of which `matrices` are in matrices of hidden layers."""
        of_matrices = self.state_bytes if self.matrix_state_bytes is None else self.matrix_state_bytes
        return (weights - matrices) * self.state_bytes + matrices * of_matrices


Betas = tuple[float, float]


def _sgd(
    groups: Groups, lr: "torch.Tensor", *, fused: bool, momentum: float, nesterov: bool
) -> "torch.optim.Optimizer":
    import torch

    from mptui.engine.optim.fused import FusedSGD

    if fused:
        return FusedSGD(groups, lr, momentum=momentum, nesterov=nesterov)
    return torch.optim.SGD(groups, lr=float(lr), momentum=momentum, nesterov=nesterov)


def _adamw(
    groups: Groups, lr: "torch.Tensor", *, fused: bool, betas: Betas, eps: float
) -> "torch.optim.Optimizer":
    import torch

    from mptui.engine.optim.fused import FusedAdamW

    if fused:
        return FusedAdamW(groups, lr, betas=betas, eps=eps)
    return torch.optim.AdamW(groups, lr=float(lr), betas=betas, eps=eps)


def _adam(
    groups: Groups, lr: "torch.Tensor", *, fused: bool, betas: Betas, eps: float
) -> "torch.optim.Optimizer":
    import torch

    from mptui.engine.optim.fused import FusedAdam

    if fused:
        return FusedAdam(groups, lr, betas=betas, eps=eps)
    return torch.optim.Adam(groups, lr=float(lr), betas=betas, eps=eps)


def _muon(
    groups: Groups,
    lr: "torch.Tensor",
    *,
    fused: bool,
    momentum: float,
    nesterov: bool,
    betas: Betas,
    eps: float,
) -> "torch.optim.Optimizer":
    from mptui.engine.optim.fused import Muon

    return Muon(groups, lr, momentum=momentum, nesterov=nesterov, betas=betas, eps=eps)


def _lion(groups: Groups, lr: "torch.Tensor", *, fused: bool, betas: Betas) -> "torch.optim.Optimizer":
    from mptui.engine.optim.fused import FusedLion

    return FusedLion(groups, lr, betas=betas)


def _sgd_schedule_free(
    groups: Groups, lr: "torch.Tensor", *, fused: bool, momentum: float
) -> "torch.optim.Optimizer":
    from mptui.engine.optim.averages import ScheduleFreeSGD

    return ScheduleFreeSGD(groups, lr, momentum=momentum)


def _adamw_schedule_free(
    groups: Groups, lr: "torch.Tensor", *, fused: bool, betas: Betas, eps: float
) -> "torch.optim.Optimizer":
    from mptui.engine.optim.averages import ScheduleFreeAdamW

    return ScheduleFreeAdamW(groups, lr, betas=betas, eps=eps)


OPTIMIZERS: dict[str, OptimizerSpec] = {
    "sgd": OptimizerSpec(
        build=_sgd,
        state_bytes=4,
        has_fused=True,
        settings={"momentum": 0.9, "nesterov": False},
        momentum="momentum_buffer",
    ),
    # these divide their averages of gradients by their size, so that they need no scaling
    "adamw": OptimizerSpec(
        build=_adamw, state_bytes=8, has_fused=True, settings={"betas": (0.9, 0.999), "eps": 1e-8}, lr=1e-3
    ),
    "adam": OptimizerSpec(
        build=_adam, state_bytes=8, has_fused=True, settings={"betas": (0.9, 0.999), "eps": 1e-8}, lr=1e-3
    ),
    "muon": OptimizerSpec(
        build=_muon,
        state_bytes=8,
        matrix_state_bytes=4,
        settings={"momentum": 0.95, "nesterov": True, "betas": (0.9, 0.999), "eps": 1e-8},
        lr=1e-3,
    ),
    "lion": OptimizerSpec(build=_lion, state_bytes=4, settings={"betas": (0.9, 0.99)}, lr=1e-4),
    "sgd_schedule_free": OptimizerSpec(
        build=_sgd_schedule_free, state_bytes=4, settings={"momentum": 0.9}, averages=True, lr=1.0
    ),
    "adamw_schedule_free": OptimizerSpec(
        build=_adamw_schedule_free,
        state_bytes=8,
        settings={"betas": (0.9, 0.999), "eps": 1e-8},
        averages=True,
        lr=2.5e-3,
    ),
}
"""Name -> optimizer; the first is the default."""
