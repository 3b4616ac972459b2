"""Colours of classes in pictures of masks: those of PASCAL VOC."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BACKGROUND = "background"

_COLOURS = 256
VOID = (224, 224, 192)

Palette = npt.NDArray[np.uint8]


def palette(classes: Sequence[str]) -> Palette:
    """Return a colour for each class, [256, 3]; more classes share colours. A background is black.

    The colours are those of PASCAL VOC, where each bit of a number sets a bit of a channel, highest first.
    """
    numbers = np.arange(_COLOURS) + (classes[0] != BACKGROUND)
    colours_N3 = np.zeros((_COLOURS, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours_N3[:, channel] |= ((numbers >> (3 * bit + channel)) & 1).astype(np.uint8) << (7 - bit)
    return colours_N3


def coloured(mask_HW: npt.NDArray[np.integer], colours: Palette) -> npt.NDArray[np.uint8]:
    """Return a mask of class numbers as RGB, [H, W, 3]; ignored pixels, below 0, are cream, as VOC's void."""
    pixels_HW3: npt.NDArray[np.uint8] = colours[mask_HW % _COLOURS]
    pixels_HW3[mask_HW < 0] = VOID
    return pixels_HW3
