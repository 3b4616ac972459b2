"""Tells masks from photographs by their pixels, in child processes: decoders are C code."""

import json
import sys
from dataclasses import astuple, dataclass

from mptui.data.core.types import BadSampleError
from mptui.data.decode.image import opened, stored_size

FEW, _MANY = 16, 64
"""Colours of a mask at most, grey values of a photograph more."""
_BIN, _FULLEST = 8, 4
_IN_MASK, _IN_PHOTOGRAPH = 0.97, 0.8
"""Share of the 4 fullest bins of 8 grey values in a mask with loss or smoothing; of a photograph at most."""
_SIDE = 256


@dataclass(frozen=True, slots=True)
class PixelLook:
    """What the pixels of an image can be.

    Attributes:
        width: Its width as it is stored, in pixels; 0: it can't be read.
        height: Its height.
        values: Number of its grey values.
        is_flat: Whether it has few values, as a mask.
        is_photograph: Whether it has many values, in many of its pixels.
    """

    width: int = 0
    height: int = 0
    values: int = 0
    is_flat: bool = False
    is_photograph: bool = False


def look(path: str) -> PixelLook:
    """Decode an image, a JPEG at a smaller size, and count its values."""
    try:
        with opened(path) as image:
            width, height = stored_size(image)
            image.draft("RGB", (_SIDE, _SIDE))
            few = image.convert("RGB").getcolors(FEW)
            pixels = image.convert("L").histogram()
    except BadSampleError:
        return PixelLook()
    bins = sorted(sum(pixels[start : start + _BIN]) for start in range(0, len(pixels), _BIN))
    share, values = sum(bins[-_FULLEST:]) / sum(pixels), sum(map(bool, pixels))
    is_flat = few is not None or share >= _IN_MASK
    return PixelLook(width, height, values, is_flat, values > _MANY and share <= _IN_PHOTOGRAPH)


def main() -> None:
    """Answer each line of stdin, a JSON list [null, samples], until stdin ends."""
    for line in sys.stdin:
        _, samples = json.loads(line)
        sys.stdout.write(json.dumps([astuple(look(path)) for path, _ in samples]) + "\n")
        sys.stdout.flush()
