"""Counts the values of a mask that are one compact region each, as the numbers of objects are."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_LARGER_SIDE = 256
"""Side in pixels to which masks are thinned out."""
_FEWEST_PIXELS = 4
_FILLED = 0.4
"""Share of its bounding box that a compact region fills, at least: a disc fills 0.79."""


def compact_regions(values_HW: npt.NDArray[np.int32], codes: Sequence[int]) -> tuple[int, int]:
    """Return the number of values above 0 with some pixels, and how many of them are one compact region.

    Args:
        values_HW: The value of each pixel.
        codes: All values that occur, ascending.
    """
    step = max(1, max(values_HW.shape) // _LARGER_SIDE)
    thin_HW = values_HW[::step, ::step]
    place_N = np.searchsorted(np.array(codes), thin_HW.ravel())
    area = np.bincount(place_N, minlength=len(codes))
    box = np.ones(len(codes), np.int64)
    for axis, size in enumerate(thin_HW.shape):
        at_N = np.indices(thin_HW.shape, np.int32)[axis].ravel()
        first, last = np.full(len(codes), size), np.full(len(codes), -1)
        np.minimum.at(first, place_N, at_N)
        np.maximum.at(last, place_N, at_N)
        box *= np.maximum(last - first + 1, 1)
    looked_at = (np.array(codes) > 0) & (area >= _FEWEST_PIXELS)
    return int(looked_at.sum()), int((looked_at & (area >= _FILLED * box)).sum())
