"""Builds the optimizer of a run, and updates its hyperparameters after a switch to another profile."""

from typing import Any

import torch

from mptui.config.schema import TrainingConfig
from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.optim.optimizer_state import OptimizerState
from mptui.engine.optim.param_groups import parameter_groups
from mptui.registry.optimizers import OPTIMIZERS, Groups


def build_optimizer(
    model: torch.nn.Module, training: TrainingConfig, lr: torch.Tensor, *, fused: bool
) -> torch.optim.Optimizer:
    """Build the optimizer named by `training.optimizer`, over the model's trainable parameters.

    Args:
        model: The network, on its device.
        training: Optimizer name and hyperparameters.
        lr: 0-dim float32 tensor on the device that a fused optimizer reads at each step.
        fused: One kernel updates all parameters, and skips the update if `found_inf` is set.
    """
    groups = parameter_groups(model, training)
    return OPTIMIZERS[training.optimizer].build(groups, lr, fused=fused, **_settings(training))


def continued(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, training: TrainingConfig, lr: torch.Tensor
) -> torch.optim.Optimizer:
    """Return `optimizer` with other hyperparameters; a new one with its state if it trains other weights.

    The arguments are those of `build_optimizer`. Weights that were not trained have no state yet.
    """
    if _rates(optimizer.param_groups) == _rates(parameter_groups(model, training)):
        _take_over(optimizer, training)
        return optimizer
    other = build_optimizer(model, training, lr, fused=isinstance(optimizer, FusedOptimizer))
    state = OptimizerState(training.optimizer, model, optimizer).state_dict()
    OptimizerState(training.optimizer, model, other).load_state_dict(state)
    return other


def _rates(groups: Groups) -> dict[torch.Tensor, float]:
    """Return the factor of the learning rate of each trained weight."""
    return {p: group["lr_scale"] for group in groups for p in group["params"]}


def _take_over(optimizer: torch.optim.Optimizer, training: TrainingConfig) -> None:
    for group in optimizer.param_groups:
        if group["decays"]:
            group["weight_decay"] = training.weight_decay
        group.update(_settings(training))


def shrink_momentum(optimizer: torch.optim.Optimizer, name: str, factor: float) -> None:
    """Multiply the momentum of the optimizer called `name` by `factor`, if it has one."""
    momentum = OPTIMIZERS[name].momentum
    for state in optimizer.state.values():
        if momentum is not None and isinstance(buffer := state.get(momentum), torch.Tensor):
            buffer.mul_(factor)


def supports_fused(name: str, device: torch.device) -> bool:
    """Whether the optimizer called `name` has a fused kernel for this kind of device."""
    return OPTIMIZERS[name].has_fused and device.type in {"cuda", "cpu", "xpu", "mps"}


def _settings(training: TrainingConfig) -> dict[str, Any]:
    """Return the settings of [training] that the optimizer uses, by key, or its own values of those unset."""
    own = OPTIMIZERS[training.optimizer].settings
    given = {key: getattr(training, key) for key in own}
    return {key: own[key] if value is None else value for key, value in given.items()}
