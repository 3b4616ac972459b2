"""Optimizers, set up so that a bad step can be refused on the device."""

import torch

from mptui.config.schema import TrainingConfig
from mptui.engine.optim.fused import FusedAdamW, FusedSGD


def build_optimizer(
    model: torch.nn.Module, training: TrainingConfig, lr: torch.Tensor, *, fused: bool
) -> torch.optim.Optimizer:
    """SGD or AdamW over the model's trainable parameters.

    Args:
        model: Its norms' and biases' parameters (fewer than two axes) get no weight decay.
        training: Names the optimizer and its numbers.
        lr: 0-dim float32 tensor on the device that a fused optimizer reads at each step.
        fused: One kernel updates all parameters, and leaves them alone when `found_inf` is set.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if _decays(p)], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if not _decays(p)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == "adamw":
        return FusedAdamW(groups, lr) if fused else torch.optim.AdamW(groups, lr=float(lr))
    if fused:
        return FusedSGD(groups, lr, momentum=training.momentum)
    return torch.optim.SGD(groups, lr=float(lr), momentum=training.momentum)


def take_over(optimizer: torch.optim.Optimizer, training: TrainingConfig) -> None:
    """Let an optimizer go on with the numbers of another configuration; its state stays."""
    for group in optimizer.param_groups:
        if _decays(group["params"][0]):
            group["weight_decay"] = training.weight_decay
        if "momentum" in group:
            group["momentum"] = training.momentum


def shrink_momentum(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply SGD's momentum buffers by `factor`.

    AdamW divides its average of gradients by their size, and keeps both.
    """
    for state in optimizer.state.values():
        if isinstance(buffer := state.get("momentum_buffer"), torch.Tensor):
            buffer.mul_(factor)


def _decays(parameter: torch.Tensor) -> bool:
    return parameter.ndim >= 2


def supports_fused(device: torch.device) -> bool:
    """Whether torch has fused SGD and AdamW kernels for this kind of device."""
    return device.type in {"cuda", "cpu", "xpu", "mps"}
