"""Decode a JPEG with libjpeg-turbo straight from the file's bytes into an array.

The same decoder as Pillow's, and the same pixels, without the copies between its images and arrays. It takes
what is most common, whole 8-bit RGB and grey files; whatever else there is, and whatever is wrong with a
file, is left to Pillow, which so alone decides what can be read and what is said of the rest.

A decoder on a GPU takes less still, and says less of what is wrong: what `plain` lets through.
"""

import struct
from collections.abc import Iterator

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

_START, _END = b"\xff\xd8", b"\xff\xd9"
_BASELINE, _SCAN, _JFIF, _ADOBE = 0xC0, 0xDA, 0xE0, 0xEE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_YCBCR = 1
_END_BYTES = 64
"""Some programs write a few bytes after the end."""


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


def plain(image: Image.Image, room: int) -> bytes | None:
    """The content of an opened file, where every decoder makes the same picture of it.

    That is one baseline scan of 8-bit YCbCr or grey, from its first byte to its last, of the size that Pillow
    has checked. A file whose end is missing is none, so that it is named as such and not decoded to grey.

    Args:
        image: The file, opened by Pillow, which has read its header.
        room: The most bytes it may have.
    """
    if not isinstance(image, JpegImageFile) or image.format != "JPEG" or image.mode not in _MODES:
        return None
    if image.fp is None:
        return None
    image.fp.seek(0)
    data = image.fp.read(room + 1)
    return data if len(data) <= room and _is_plain(data, image.size) else None


def _is_plain(data: bytes, size: tuple[int, int]) -> bool:
    frame, scan, jfif, transform, begun = b"", b"", False, _YCBCR, len(data)
    for marker, begin, end in _segments(data):
        segment = data[begin:end]
        if marker in _FRAMES:
            if marker != _BASELINE or frame:
                return False
            frame = segment
        elif marker == _JFIF:
            jfif = jfif or segment.startswith(b"JFIF\0")
        elif marker == _ADOBE and segment.startswith(b"Adobe") and len(segment) >= 12:
            transform = segment[11]
        elif marker == _SCAN:
            scan, begun = segment, end
    if len(frame) < 6 or not scan or data.find(_END, max(begun, len(data) - _END_BYTES)) < 0:
        return False
    depth, height, width, count = struct.unpack_from(">BHHB", frame)
    if depth != 8 or (width, height) != size or len(frame) != 6 + 3 * count or scan[0] != count:
        return False
    return count == 1 or (count == 3 and transform == _YCBCR and (jfif or frame[6::3] == b"\1\2\3"))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The marker of each segment up to the first scan, and where its content begins and ends."""
    at = 2 if data.startswith(_START) else len(data)
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # a filling byte
            at += 1
            continue
        if end > len(data):
            return
        yield marker, at + 4, end
        if marker == _SCAN:
            return
        at = end


def upright(orientation: int) -> tuple[bool, bool, bool]:
    """How what was stored with an EXIF `orientation` is turned: transposed, mirrored along x, along y."""
    return _UPRIGHT.get(orientation, (False, False, False))


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
