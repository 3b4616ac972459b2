"""Checks of batches and losses for debugging (`guards.check_batches`), which sync; and of outputs."""

import torch

from mptui.data.core.batch import Batch
from mptui.data.core.types import IGNORE
from mptui.errors import DataError, DivergedError, OwnCodeError
from mptui.registry.own_code import defining_line


def check_batch(batch: Batch, num_classes: int, step: int) -> None:
    """Raise DataError if a batch holds values that no network can learn from.

    Args:
        batch: Images must be finite; targets must be below `num_classes`, ignored, or noise.
        num_classes: Number of classes of the task; 0: there are no labels.
        step: Optimizer steps tried so far, for the message.
    """
    where = f"step {step + 1}, samples {batch.sample_indices.tolist()[:8]}"
    if not bool(torch.isfinite(batch.images_BCHW).all()):
        raise DataError(f"{where}: an image has values that are not finite", hint="check these files")
    if batch.timesteps is not None or not num_classes:
        return  # the targets are noise, or the images
    low, high = int(batch.targets.min()), int(batch.targets.max())
    if low < IGNORE or high >= num_classes:
        raise DataError(
            f"{where}: targets from {low} to {high}, but there are {num_classes} classes",
            hint="check the labels or masks of these files; data.ignore_index sets a value to ignore",
        )


def check_outputs(outputs: object, model: torch.nn.Module) -> None:
    """Raise OwnCodeError if a network in training mode returns no tensor, or one without a gradient."""
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
        return
    if isinstance(outputs, torch.Tensor):
        fault, remedy = (
            "without a gradient",
            "leave out detach(), .data, torch.no_grad() and NumPy in forward",
        )
    else:
        fault, remedy = type(outputs).__name__, "return one tensor from forward, also if self.training"
    code = getattr(type(model).forward, "__code__", None)
    place = "" if code is None else defining_line(code)
    words = f"the network returned outputs {fault} in training"
    raise OwnCodeError("\n".join([words, *([f"  {place}"] if place else [])]), hint=remedy)


def check_loss(loss: torch.Tensor, step: int) -> None:
    """Raise DivergedError at the first loss that is not finite."""
    if not bool(torch.isfinite(loss)):
        raise DivergedError(
            f"step {step + 1}: the loss is {float(loss)}",
            hint="try a lower learning rate (--lr), or --precision fp32",
        )
