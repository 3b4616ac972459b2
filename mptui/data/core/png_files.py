"""PNG files of images in memory, and grids of many images in one.

Shapes: N images, H and W pixels, C channels.
"""

import io
import math
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mptui.regular import open_regular

Pixels = npt.NDArray[np.uint8]

_PROGRAM = "mptui"
_HEAD = 4096
"""Bytes at the beginning of a file, with its text."""
_GAP = 1
"""Pixels between two images of a grid."""


def grid(pixels_NHWC: Pixels, columns: int | None = None) -> Pixels:
    """Arrange images row by row in one, [H, W, C]; `columns` unset: as many as rows, or one more."""
    N, H, W, C = pixels_NHWC.shape
    columns = columns or math.ceil(math.sqrt(N))
    rows = -(-N // columns)
    sheet = np.zeros((rows * (H + _GAP) - _GAP, columns * (W + _GAP) - _GAP, C), np.uint8)
    for number, image in enumerate(pixels_NHWC):
        top, left = number // columns * (H + _GAP), number % columns * (W + _GAP)
        sheet[top : top + H, left : left + W] = image
    return sheet


def save_png(pixels_HWC: Pixels, path: Path) -> None:
    """Write an image.

    Raises:
        OSError: The disk is full or not writable.
    """
    Image.fromarray(pixels_HWC).save(path, "PNG")


def png_bytes(image: Image.Image) -> memoryview:
    """Return the content of a PNG file, which names the program that made it; see `is_own_png`."""
    content, words = io.BytesIO(), PngInfo()
    words.add_text("Software", _PROGRAM)
    image.save(content, "PNG", pnginfo=words)
    return content.getbuffer()


def is_own_png(path: Path) -> bool:
    """Whether a file is a picture of `png_bytes`; others are not to be removed or replaced."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return b"tEXtSoftware\0" + _PROGRAM.encode() in file.read(_HEAD)
    except OSError:
        return False
