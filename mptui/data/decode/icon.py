"""Sizes of the images inside an icon (ICO), from their headers.

Pillow decodes an icon as it opens it, at the size of an image inside that the icon's own header doesn't tell.
"""

import struct
from typing import IO

from PIL.IcoImagePlugin import IcoFile

_PNG = b"\x89PNG\r\n\x1a\n"


def icon_sizes(file: IO[bytes]) -> list[tuple[int, int]]:
    """Return width and height of each image of an icon, in pixels.

    Raises:
        SyntaxError: It is no icon.
        struct.error: A header is cut off.
    """
    return [_size_at(file, entry.offset) for entry in IcoFile(file).entry]


def _size_at(file: IO[bytes], offset: int) -> tuple[int, int]:
    file.seek(offset)
    header = file.read(24)
    if header.startswith(_PNG):
        width, height = struct.unpack(">II", header[16:24])
        return width, height
    width, rows = struct.unpack("<ii", header[4:12])
    return abs(width), abs(rows) // 2  # the rows of its mask follow those of its colours
