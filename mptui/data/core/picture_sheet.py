"""Draws the samples of a validation into one picture, in groups, with what is predicted of each.

Shapes: H and W pixels, C channels.
"""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from mptui.data.core.class_colours import palette
from mptui.data.core.png_files import Pixels
from mptui.data.core.predictions import CAPTION, PicturedSample, ValidationPictures
from mptui.text import clean, clean_name

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""
Colour = tuple[int, int, int]

_WIDTH = 816
"""Approximate width of a sheet."""
_LEAST = 96
"""Width of a column with its words; images much smaller than it are enlarged by a whole factor."""
_GAP, _TITLE, _LINE, _FONT, _LETTER = 6, 18, 13, 11, 6
"""Pixels: between samples, heights of a title, of a line and of its letters, their approximate width."""
_MOST_NAMES = 64
"""Largest number of classes whose colours are told."""
_PAPER, _INK, _RIGHT, _WRONG = (15, 19, 24), (215, 221, 228), (63, 182, 139), (242, 102, 91)


def draw(pictures: ValidationPictures) -> tuple[Image.Image, dict[str, list[Box]]]:
    """Return the picture, and the place of each sample in it by group."""
    tiles = {group: [_enlarged(each.pixels_HWC) for each in them] for group, them in pictures.groups.items()}
    sizes = [tile.shape for of_group in tiles.values() for tile in of_group]
    across = max([_LEAST, *(size[1] for size in sizes)]) + _GAP
    down = max([0, *(size[0] for size in sizes)]) + CAPTION
    columns = max(1, _WIDTH // across)
    width = _GAP + columns * across
    has_masks = any(each.truth is None for them in pictures.groups.values() for each in them)
    legend = _legend(pictures.classes, width) if has_masks else []
    top = _GAP + (legend[-1][0][1] + _LINE if legend else 0)
    boxes: dict[str, list[Box]] = {}
    titles: dict[str, int] = {}
    for group, of_group in tiles.items():
        titles[group], top = top, top + _TITLE
        boxes[group] = [
            (_GAP + number % columns * across, top + number // columns * down, tile.shape[1], tile.shape[0])
            for number, tile in enumerate(of_group)
        ]
        top += -(-len(of_group) // columns) * down + _GAP
    sheet = Image.new("RGB", (width, top), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT)
    for (left, above), name, colour in legend:
        pen.rectangle((left, above + 2, left + 9, above + 11), colour, _INK)
        pen.text((left + 14, above), name, _INK, font)
    for group, samples in pictures.groups.items():
        title = f"{group}: {len(samples)} of epoch {pictures.epoch}, step {pictures.step:,}"
        pen.text((_GAP, titles[group]), title, _INK, font)
        for sample, tile, (left, above, _, height) in zip(samples, tiles[group], boxes[group], strict=True):
            sheet.paste(Image.fromarray(tile), (left, above))
            for line, (words, colour) in enumerate(_words(sample, pictures.classes)):
                place = (left, above + height + 1 + line * _LINE)
                pen.text(place, _drawable(words, (across - _GAP) // _LETTER), colour, font)
    return sheet, boxes


def _enlarged(pixels_HWC: Pixels) -> Pixels:
    factor = max(1, _LEAST // pixels_HWC.shape[0])
    return pixels_HWC.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else pixels_HWC


def _words(sample: PicturedSample, classes: Sequence[str]) -> list[tuple[str, Colour]]:
    """Return the two lines below a sample, each with its colour."""
    if sample.truth is None or sample.predicted is None or sample.probability is None:
        return [("image, mask, prediction", _INK), (f"{100 * sample.error:.1f} % of the pixels wrong", _INK)]
    predicted = f"{100 * sample.probability:.0f}% {clean_name(classes[sample.predicted])}"
    is_right = sample.truth == sample.predicted
    return [(clean_name(classes[sample.truth]), _INK), (predicted, _RIGHT if is_right else _WRONG)]


def _legend(classes: Sequence[str], width: int) -> list[tuple[tuple[int, int], str, Colour]]:
    """Return the place, the name and the colour of each class, in lines of `width` pixels."""
    places, left, top = [], _GAP, _GAP
    for name, colour in zip(classes[:_MOST_NAMES], palette(classes).tolist(), strict=False):
        shown = _drawable(name, 24)
        needed = 24 + (_LETTER + 1) * len(shown)
        if left + needed > width and left > _GAP:
            left, top = _GAP, top + _LINE
        places.append(((left, top), shown, (colour[0], colour[1], colour[2])))
        left += needed
    return places


def _drawable(words: str, most: int) -> str:
    """Return words that fit, in letters that Pillow's font has."""
    return clean(words, most).replace("…", "...").encode("latin-1", "replace").decode("latin-1")
