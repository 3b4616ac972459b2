"""PNG files of images in memory, and grids of many images in one.

Shapes: N images, H and W pixels, C channels.
"""

import io
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

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
    """Return the content of a PNG file."""
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getbuffer()
