"""The optimizers by name, as `training.optimizer` has them. torch is imported when one is built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Groups = list[dict[str, Any]]
"""Parameter groups of `torch.optim`: `params`, their `weight_decay`, and `lr_scale`, a factor of the rate.
See `mptui.engine.optim.param_groups`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An optimizer.

    Attributes:
        build: Called as `build(groups, lr, fused=..., **settings)`; `lr` is a 0-dim float32 tensor on the
            device. With `fused` it returns a `mptui.engine.optim.fused.FusedOptimizer`, which reads `lr` at
            each step, multiplies it by the `lr_scale` of each group, and skips a step on the device where
            `found_inf` is 1. Otherwise it returns any `torch.optim.Optimizer`: the host then sets the `lr` of
            its groups and skips the step, at the price of one sync a step.
        state_bytes: Bytes of state for each weight.
        has_fused: Whether `build` can be called with `fused=True`.
        settings: The keys of [training] that `build` takes. Its parameter groups have the same keys, so that
            a switch to another profile can change them.
        momentum: Name of the state that sums up gradients, which the learning rate multiplies. It is scaled
            down where a switch to another profile raises the rate by much. None: there is no such state.
    """

    build: "Callable[..., torch.optim.Optimizer]"
    state_bytes: int
    has_fused: bool = False
    settings: tuple[str, ...] = ()
    momentum: str | None = None


def _sgd(groups: Groups, lr: "torch.Tensor", *, fused: bool, momentum: float) -> "torch.optim.Optimizer":
    import torch

    from mptui.engine.optim.fused import FusedSGD

    if fused:
        return FusedSGD(groups, lr, momentum=momentum)
    return torch.optim.SGD(groups, lr=float(lr), momentum=momentum)


def _adamw(groups: Groups, lr: "torch.Tensor", *, fused: bool) -> "torch.optim.Optimizer":
    import torch

    from mptui.engine.optim.fused import FusedAdamW

    return FusedAdamW(groups, lr) if fused else torch.optim.AdamW(groups, lr=float(lr))


OPTIMIZERS: dict[str, OptimizerSpec] = {
    "sgd": OptimizerSpec(
        build=_sgd, state_bytes=4, has_fused=True, settings=("momentum",), momentum="momentum_buffer"
    ),
    # divides its average of gradients by their size, so that it needs no scaling
    "adamw": OptimizerSpec(build=_adamw, state_bytes=8, has_fused=True),
}
"""Name -> optimizer; the first is the default."""
