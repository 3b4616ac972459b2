"""A batch on the device, as tasks and the trainer see it.

Shapes: B samples, H and W pixels, K classes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(slots=True)
class Batch:
    """A micro-batch, ready for the network.

    `valid` is known to the host without asking the device: samples of a classification batch, pixels that
    are not ignored of a segmentation batch. `size` is the number of real samples: a validation batch may be
    padded at its end to keep shapes static, and what lies beyond `size` counts for nothing.
    """

    images_BCHW: torch.Tensor
    """float32, normalised; NHWC in memory where channels_last is on."""
    targets: torch.Tensor
    """int64: labels_B, or masks_BHW with `IGNORE` (-1) for pixels that count for nothing."""
    size: int
    valid: int
    sample_indices: npt.NDArray[np.int64]
    """Which samples of the split these are, in order; length `size`."""
    mixed_targets: torch.Tensor | None = None
    """mixup, cutmix: the labels_B of the other images; the loss is lam x targets + (1 - lam) x these."""
    lam: float = 1.0
    """mixup, cutmix: the share of the first image."""
