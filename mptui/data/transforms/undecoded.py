"""Views of images that are not decoded yet: which pixels of the stored image they are, and how turned.

No torch here: workers import this. Boxes are left, top, right, bottom; turns are transposed, mirrored along
x, mirrored along y, in the order in which they are done.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mptui.data.core.types import Encoded, InFile, Mask, Split
from mptui.data.decode import jpeg
from mptui.data.decode.mask import resized_mask
from mptui.data.transforms.crop import Boxes, Flips, pixel_box
from mptui.data.transforms.resize import resized_size

MOST_BYTES = 1 << 20
"""Of a file that is decoded elsewhere. Larger ones are decoded by the workers: room for the largest file is
kept for each sample of a batch, and of many batches at once."""

_LOOKED_AT = 64
_SPARE = 1.25
_TO = 64

Turn = tuple[bool, bool, bool]


class Cut(NamedTuple):
    """A view of a JPEG file in the arena; or `PIXELS`, where the pixels of the view are there instead."""

    size: int = 0
    """Bytes of the file."""
    width: int = 0
    """Of the whole image in pixels, as it is stored."""
    height: int = 0
    resized_width: int = 0
    """That it is resized to; the view is cut from that."""
    resized_height: int = 0
    left: int = 0
    top: int = 0
    right: int = 0
    bottom: int = 0
    turn: int = 0
    """How the view is turned when it is cut and resized: 4 if transposed, 2 mirrored along x, 1 along y."""


PIXELS = Cut()


def resized_upright(found: Encoded, resize: int) -> tuple[int, int]:
    """Width and height of the upright image after its resize, as where a worker decodes the file."""
    return resized_size(*_decoded_upright(found, resize), resize)


def resized_mask_of(found: Encoded, resize: int) -> Mask | None:
    """The mask after that resize."""
    if found.mask_HW is None:
        return None
    width, height = _decoded_upright(found, resize)
    resized_width, resized_height = resized_upright(found, resize)
    return resized_mask(resized_mask(found.mask_HW, height, width), resized_height, resized_width)


def _decoded_upright(found: Encoded, resize: int) -> tuple[int, int]:
    """Width and height that a worker decodes the file at."""
    height, width = found.upright
    shrink = jpeg.shrink_of(min(width, height), resize)
    return -(-width // shrink), -(-height // shrink)


def cut_of(found: Encoded, resize: int, box: Boxes, flips: Flips) -> Cut:
    """The view `box` and `flips` of the upright image, in the stored one; both are resized before."""
    width, height = size = resized_upright(found, resize)
    left, top, right, bottom = pixel_box(box, width, height)
    stored = transposed, mirrored_x, mirrored_y = jpeg.upright(found.orientation)
    if mirrored_x:
        left, right = width - right, width - left
    if mirrored_y:
        top, bottom = height - bottom, height - top
    if transposed:
        left, top, right, bottom = top, left, bottom, right
        size = height, width
    turn = _one_after_the_other(stored, flips.tolist())
    number = sum(bit << place for place, bit in zip((2, 1, 0), turn, strict=True))
    return Cut(len(found.content), found.width, found.height, *size, left, top, right, bottom, number)


def room_for(split: Split, pixels: int) -> int:
    """Bytes to keep for each sample of a split, so that most of its files have room; 0: it has no files.

    Args:
        split: The samples.
        pixels: Bytes of a sample's pixels, for which there must be room in any case.
    """
    count = len(split)
    looked_at = [split.request(index) for index in range(0, count, max(1, count // _LOOKED_AT))]
    sizes = [request.file_bytes() for request in looked_at if isinstance(request, InFile)]
    if not sizes:
        return 0
    return -(-max(pixels, min(MOST_BYTES, int(max(sizes) * _SPARE))) // _TO) * _TO


def _one_after_the_other(first: Turn, second: Sequence[bool]) -> Turn:
    """The one turn that does what two do."""
    transposed, mirrored_x, mirrored_y = second
    along = first[::-1] if transposed else first[1:]
    return first[0] != transposed, along[0] != mirrored_x, along[1] != mirrored_y
