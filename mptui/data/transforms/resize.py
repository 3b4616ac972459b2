"""Resizes whole images before views are cut from them.

Every image is resized to a shorter side of `data.resize` pixels with its proportions; smaller ones are not
enlarged. This happens before any cache, and `mptui prepare` stores the result, so that views do not depend on
where images are cached. Imports no torch, as workers import this.
"""

from math import sqrt

import numpy as np
import numpy.typing as npt

from mptui.data.core.types import Decoded, Sides
from mptui.data.transforms.resample import resampled, resized_mask
from mptui.registry.samples import Interpolation

LONGEST = 3
"""Aspect ratio above which an image is resized further, so that none takes more memory than three squares of
`resize`."""


def resized_size(width: int, height: int, resize: int) -> tuple[int, int]:
    """Return the resized width and height in pixels of an image of this size."""
    scale = min(1.0, resize / min(height, width), sqrt(LONGEST * resize * resize / (height * width)))
    if scale == 1.0:
        return width, height
    # Rounded down, so that a scale limited by the area keeps the area below its limit.
    return max(1, int(width * scale + 1e-6)), max(1, int(height * scale + 1e-6))


def resized(sample: Decoded, resize: int, interpolation: Interpolation = "bilinear") -> Decoded:
    """Resize a sample and its mask; return the sample itself if it is small enough."""
    height, width = sample.image_HWC.shape[:2]
    new = resized_size(width, height, resize)
    if new == (width, height):
        return sample
    mask = None if sample.mask_HW is None else resized_mask(sample.mask_HW, new[1], new[0])
    return Decoded(resampled(sample.image_HWC, *new, interpolation), sample.label, mask)


def most_pixels(resize: int) -> int:
    """Return the largest number of pixels of a resized image."""
    return LONGEST * resize * resize


def resized_pixels(sides_N2: Sides, resize: int) -> npt.NDArray[np.float64]:
    """Estimate the number of pixels of each resized image.

    Args:
        sides_N2: The shorter and the longer side of each image in pixels.
        resize: The shorter side that images are resized to.
    """
    shorter, longer = sides_N2.astype(np.float64).T
    scale = np.minimum(1.0, resize / np.maximum(1.0, shorter))
    pixels_N: npt.NDArray[np.float64] = np.minimum(shorter * longer * scale * scale, most_pixels(resize))
    return pixels_N
