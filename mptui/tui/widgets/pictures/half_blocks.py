"""Pictures in characters: two pixels in a cell as half blocks, or brightness where there are none."""

from itertools import groupby
from typing import TYPE_CHECKING

from textual.content import Content

if TYPE_CHECKING:
    from PIL.Image import Image

_HALF_BLOCK = "▀"
_RAMP = " .:-=+*#%@"
"""Characters by brightness, where there are no half blocks."""


def half_blocks(pixels: "Image", *, ascii_only: bool) -> list[Content]:
    """Return the lines of an RGB image: a column of cells for each column of pixels, a line for two rows."""
    return [_line(pixels, top, ascii_only) for top in range(0, pixels.height, 2)]


def _line(pixels: "Image", top: int, ascii_only: bool) -> Content:
    upper, lower = (
        [pixels.getpixel((x, min(y, pixels.height - 1))) for x in range(pixels.width)] for y in (top, top + 1)
    )
    if ascii_only:
        brightness = [sum(map(_brightness, pair)) / 2 for pair in zip(upper, lower, strict=True)]
        return Content("".join(_RAMP[int(value * (len(_RAMP) - 1) / 255)] for value in brightness))
    styles = (f"{_hex(one)} on {_hex(other)}" for one, other in zip(upper, lower, strict=True))
    return Content.assemble(*((_HALF_BLOCK * len(list(cells)), style) for style, cells in groupby(styles)))


def _rgb(pixel: object) -> tuple[int, int, int]:
    assert isinstance(pixel, tuple), "of an RGB image"
    red, green, blue = pixel
    return red, green, blue


def _brightness(pixel: object) -> float:
    return sum(_rgb(pixel)) / 3


def _hex(pixel: object) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_rgb(pixel))
