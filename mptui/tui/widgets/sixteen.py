"""Masks in the sixteen colours of a terminal: those of a legend, with no mixed ones, which would be greys."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from mptui.data.pictures import BACKGROUND, EXTRA, HIT, VOID, bright

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = tuple[int, int, int]

_CLASSES: Sequence[Colour] = (
    *((85, 255, 255), (170, 85, 0), (85, 255, 85), (255, 255, 85), (255, 85, 255), (255, 85, 85)),
    *((85, 85, 255), (0, 170, 170), (170, 0, 170), (0, 170, 0), (0, 0, 170), (170, 0, 0)),
)
"""Colours of classes among sixteen, as Rich knows them: the first ones look like those of `bright`."""
_PALETTE = 256


def sixteen_of(colour: Colour) -> Colour:
    """Return the colour among sixteen of a class or an error in pictures; others stay as they are."""
    return _by_colour().get(colour, colour)


@cache
def _by_colour() -> Mapping[Colour, Colour]:
    _, *colours = bright([BACKGROUND]).tolist()  # without a background, classes begin with the same ones
    known = {
        (red, green, blue): _CLASSES[number % len(_CLASSES)]
        for number, (red, green, blue) in enumerate(colours)
    }
    return known | {HIT: (85, 85, 255), EXTRA: (255, 255, 255), VOID: (170, 170, 170)}  # missed: as a class


def in_legend(pixels: "Image", legend: Sequence[Colour]) -> "Image":
    """Return pixels in the colour among sixteen of the nearest one in `legend`, of at most 256 colours."""
    from PIL import Image

    own, shown = Image.new("P", (1, 1)), [value for colour in legend for value in sixteen_of(colour)]
    padded = [*legend, *[legend[0]] * (_PALETTE - len(legend))]
    own.putpalette([value for colour in padded for value in colour])
    numbers = pixels.quantize(palette=own, dither=Image.Dither.NONE)
    numbers.putpalette(shown + shown[:3] * (_PALETTE - len(legend)))
    return numbers.convert("RGB")
