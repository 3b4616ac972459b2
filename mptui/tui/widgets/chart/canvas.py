"""Converts masks of dots to braille, block or ASCII characters.

A cell has `across` x `down` dots. Masks are bool arrays of (rows x down, columns x across).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mode = Literal["braille", "block", "ascii"]
Mask = NDArray[np.bool_]
Codes = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Dots:
    """Packing of dots into cells: the weight of each dot, and the character of each sum."""

    across: int
    down: int
    weights: NDArray[np.uint8]
    characters: str

    def cells(self, mask: Mask) -> NDArray[np.intp]:
        """Pack a mask into one number per cell; 0 is empty."""
        rows, columns = mask.shape[0] // self.down, mask.shape[1] // self.across
        packed: NDArray[np.intp] = np.zeros((rows, columns), dtype=np.intp)
        for y in range(self.down):
            for x in range(self.across):
                packed += mask[y :: self.down, x :: self.across] * int(self.weights[y, x])
        return packed

    def glyphs(self) -> Codes:
        """Return the code points of the characters, by packed number."""
        return np.array([ord(character) for character in self.characters], dtype=np.uint32)


DOTS: dict[Mode, Dots] = {
    "braille": Dots(
        2,
        4,
        np.array([[1, 8], [2, 16], [4, 32], [64, 128]], dtype=np.uint8),
        " " + "".join(chr(0x2800 + code) for code in range(1, 256)),
    ),
    "block": Dots(2, 2, np.array([[1, 2], [4, 8]], dtype=np.uint8), " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"),
    "ascii": Dots(1, 1, np.array([[1]], dtype=np.uint8), " *"),
}

ASCII_MARKERS = "*o+x#%"
"""Characters of the series in ASCII mode, which has one dot per cell."""


def trace(top: NDArray[np.intp], bottom: NDArray[np.intp], drawn: Mask, rows: int) -> Mask:
    """Fill `top` to `bottom` (dot rows, downwards) of each `drawn` column, and join neighbours to a line."""
    top, bottom = top.copy(), bottom.copy()
    joined = drawn[1:] & drawn[:-1]
    before_top, before_bottom = top[:-1].copy(), bottom[:-1].copy()
    top[1:] = np.where(joined & (top[1:] > before_bottom + 1), before_bottom + 1, top[1:])
    bottom[1:] = np.where(joined & (bottom[1:] < before_top - 1), before_top - 1, bottom[1:])
    y = np.arange(rows)[:, None]
    return (y >= top) & (y <= bottom) & drawn
