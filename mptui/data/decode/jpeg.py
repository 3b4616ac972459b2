"""Decodes JPEG files with libjpeg-turbo directly into arrays.

Pillow uses the same decoder, so the pixels are the same, without copies between images and arrays. Handles
intact 8-bit RGB and grey files; Pillow decodes all others, and it alone decides which files can be read and
which errors are reported.
"""

import simplejpeg
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from mptui.data.core.types import Pixels
from mptui.data.transforms.resample import flipped

_MODES = frozenset({"RGB", "L"})
_UPRIGHT = {
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
"""EXIF orientation -> transpose, mirror left to right, mirror top to bottom."""


def decoded(image: Image.Image, side_hint: int | None) -> Pixels | None:
    """Decode an opened file as RGB, in its stored orientation.

    Args:
        image: The file, opened by Pillow, with its header read.
        side_hint: Decode at 1/2, 1/4 or 1/8 of the size while the shorter side stays at least this many
            pixels.

    Returns:
        uint8 [H, W, 3], or None if Pillow has to decode the file.
    """
    if not isinstance(image, JpegImageFile) or image.mode not in _MODES or image.fp is None:
        return None
    image.fp.seek(0)
    data = image.fp.read()
    shrink = shrink_of(min(image.size), side_hint)
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != image.size:  # the file has two sizes, and Pillow has checked the other
            return None
        pixels_HW3: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=-(-height // shrink), min_width=-(-width // shrink)
        )
    except (ValueError, KeyError, RuntimeError):  # also raised for unusual but valid files
        return None
    return pixels_HW3


def turned(image_HWC: Pixels, orientation: int) -> Pixels:
    """Turn an image stored with an EXIF `orientation` upright."""
    if orientation not in _UPRIGHT:
        return image_HWC
    transposed, mirrored_x, mirrored_y = _UPRIGHT[orientation]
    return flipped(image_HWC, transposed=transposed, mirrored_x=mirrored_x, mirrored_y=mirrored_y)


def shrink_of(shorter: int, side_hint: int | None) -> int:
    """Return the factor (1, 2, 4 or 8) that Pillow's `draft` chooses; libjpeg-turbo is no faster at others.

    Args:
        shorter: The shorter side of the file in pixels.
        side_hint: Smallest shorter side to decode to, in pixels; None: the full size.
    """
    if side_hint is None:
        return 1
    return next(each for each in (8, 4, 2, 1) if shorter // side_hint >= each or each == 1)
