"""Decode a JPEG with libjpeg-turbo from the bytes of the file directly into an array.

It is the decoder of Pillow and gives the same pixels, without the copies between images and arrays. It takes
intact 8-bit RGB and grey files; all others are left to Pillow, which alone decides what can be read and which
error is reported.
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
"""By EXIF orientation: transpose, mirror left to right, mirror top to bottom."""


def decoded(image: Image.Image, side_hint: int | None) -> Pixels | None:
    """Decode an opened file as RGB, as it is stored.

    Args:
        image: The file, opened by Pillow, which has read its header.
        side_hint: Decode at 1/2, 1/4 or 1/8 of the size while the shorter side stays at least this many
            pixels.

    Returns:
        uint8 [H, W, 3], or None where Pillow is to decode.
    """
    if not isinstance(image, JpegImageFile) or image.mode not in _MODES or image.fp is None:
        return None
    image.fp.seek(0)
    data = image.fp.read()
    shrink = shrink_of(min(image.size), side_hint)
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != image.size:  # of two sizes in one file, Pillow has checked the other
            return None
        pixels_HW3: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=-(-height // shrink), min_width=-(-width // shrink)
        )
    except (ValueError, KeyError, RuntimeError):  # also for what is only odd
        return None
    return pixels_HW3


def turned(image_HW3: Pixels, orientation: int) -> Pixels:
    """Turn what was stored with an EXIF `orientation` upright."""
    if orientation not in _UPRIGHT:
        return image_HW3
    transposed, mirrored_x, mirrored_y = _UPRIGHT[orientation]
    return flipped(image_HW3, transposed=transposed, mirrored_x=mirrored_x, mirrored_y=mirrored_y)


def shrink_of(shorter: int, side_hint: int | None) -> int:
    """The one of 1, 2, 4 and 8 that Pillow's `draft` chooses; libjpeg-turbo is no faster at others.

    Args:
        shorter: The shorter side of the file in pixels.
        side_hint: What it may be decoded down to, never below; None: its full size.
    """
    if side_hint is None:
        return 1
    return next(each for each in (8, 4, 2, 1) if shorter // side_hint >= each or each == 1)
