"""A batch on the device, and the window of batches of one optimizer step.

Shapes: B samples, H and W pixels, K classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(slots=True)
class Batch:
    """A micro-batch, ready for the network.

    `valid` is the number of mask pixels that are not ignored, or of samples without masks; the host knows it
    without a sync. `size` is the number of samples; a task ignores rows beyond it.
    """

    images_BCHW: torch.Tensor
    """float32, normalised; NHWC in memory if channels_last is on."""
    targets: torch.Tensor
    """int64: labels_B, or masks_BHW with `IGNORE` (-1) for ignored pixels. For noisy images what is to be
    predicted, float32 BCHW."""
    size: int
    valid: int
    sample_indices: npt.NDArray[np.int64]
    """Indices of the samples in the split, in order; length `size`."""
    mixed_targets: torch.Tensor | None = None
    """mixup, cutmix: the labels_B of the other images; the loss is lam x targets + (1 - lam) x these."""
    lam: float = 1.0
    """mixup, cutmix: the share of the first image."""
    timesteps: torch.Tensor | None = None
    """Noisy images: int64 timesteps_B, an input of the network."""
    labels: torch.Tensor | None = None
    """Noisy images with classes: int64 labels_B, an input of the network; some are hidden in training."""
    is_whole: bool = True
    """False for the short last batch of an epoch, for whose number of rows no code is compiled."""

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The arguments of the network."""
        if self.timesteps is None:
            return (self.images_BCHW,)
        noisy = self.images_BCHW, self.timesteps
        return noisy if self.labels is None else (*noisy, self.labels)

    def rows(self, rows: slice | torch.Tensor, *, size: int, valid: int) -> "Batch":
        """Return a batch of the selected rows; `sample_indices` is unchanged."""
        mixed, timesteps, labels = self.mixed_targets, self.timesteps, self.labels
        return replace(
            self,
            images_BCHW=self.images_BCHW[rows],
            targets=self.targets[rows],
            size=size,
            valid=valid,
            mixed_targets=None if mixed is None else mixed[rows],
            timesteps=None if timesteps is None else timesteps[rows],
            labels=None if labels is None else labels[rows],
        )


@dataclass(slots=True)  # not frozen, which would cost a step 1.4 us
class Window:
    """The micro-batches of one optimizer step: of several processes, those that this one reads.

    It can be iterated over repeatedly, until the next window is taken.
    """

    index: int
    """Number of the window in the epoch, from 0."""
    size: int
    """Number of samples; of several processes, of all together."""
    valid: int
    """Sum of `valid` of its batches; 0 if all pixels are ignored."""
    wait_s: float
    """Time in seconds that the caller waited for the data."""
    next_sample: int
    """Start of the next window in the order of the epoch: `start_sample` of a resume."""
    batches: int
    """Number of batches; 0 if this process reads none of it."""
    load: Callable[[int], Batch] = field(repr=False)
    """Loads batch i of the window."""
    targets: Callable[[int], torch.Tensor] = field(repr=False)
    """Loads the targets of batch i alone, of any integer dtype: labels_B or masks_BHW."""

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        return map(self.load, range(self.batches))


def take_rows(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows of a tensor of any type."""
    if values.dtype != torch.uint16:
        return values.index_select(0, rows)
    # CUDA indexes few unsigned types: the same bits as int16
    return values.view(torch.int16).index_select(0, rows).view(torch.uint16)


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy a small array to `device` for the current stream. On CUDA the host does not wait."""
    tensor = torch.from_numpy(values)
    # from pageable memory the driver may wait for everything that is queued on the stream
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
