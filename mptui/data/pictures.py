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

WIDTH = 816
"""Approximate width of a sheet."""
_LEAST = 96
"""Width of a column with its words; images much smaller than it are enlarged by a whole factor."""
GAP, TITLE, LINE, FONT, LETTER = 6, 18, 13, 11, 6
"""Pixels: between samples, heights of a title, of a line and of its letters, their approximate width."""
_MOST_NAMES = 64
"""Largest number of classes whose colours are told."""
PAPER, INK, _RIGHT, _WRONG = (15, 19, 24), (215, 221, 228), (63, 182, 139), (242, 102, 91)


def draw(pictures: ValidationPictures) -> tuple[Image.Image, dict[str, list[Box]]]:
    """Return the picture, and the place of each sample in it by group."""
    tiles = {group: [_enlarged(each.pixels_HWC) for each in them] for group, them in pictures.groups.items()}
    sizes = [tile.shape for of_group in tiles.values() for tile in of_group]
    across = max([_LEAST, *(size[1] for size in sizes)]) + GAP
    down = max([0, *(size[0] for size in sizes)]) + CAPTION
    columns = max(1, WIDTH // across)
    width = GAP + columns * across
    has_masks = any(each.truth is None for them in pictures.groups.values() for each in them)
    keys = legend(pictures.classes, width) if has_masks else []
    top = GAP + (keys[-1][0][1] + LINE if keys else 0)
    boxes: dict[str, list[Box]] = {}
    titles: dict[str, int] = {}
    for group, of_group in tiles.items():
        titles[group], top = top, top + TITLE
        boxes[group] = [
            (GAP + number % columns * across, top + number // columns * down, tile.shape[1], tile.shape[0])
            for number, tile in enumerate(of_group)
        ]
        top += -(-len(of_group) // columns) * down + GAP
    sheet = Image.new("RGB", (width, top), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT)
    for (left, above), name, colour in keys:
        pen.rectangle((left, above + 2, left + 9, above + 11), colour, INK)
        pen.text((left + 14, above), name, INK, font)
    for group, samples in pictures.groups.items():
        title = f"{group}: {len(samples)} of epoch {pictures.epoch}, step {pictures.step:,}"
        pen.text((GAP, titles[group]), title, INK, font)
        for sample, tile, (left, above, _, height) in zip(samples, tiles[group], boxes[group], strict=True):
            sheet.paste(Image.fromarray(tile), (left, above))
            for line, (words, colour) in enumerate(_words(sample, pictures.classes)):
                place = (left, above + height + 1 + line * LINE)
                pen.text(place, drawable(words, (across - GAP) // LETTER), colour, font)
    return sheet, boxes


def _enlarged(pixels_HWC: Pixels) -> Pixels:
    factor = max(1, _LEAST // pixels_HWC.shape[0])
    return pixels_HWC.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else pixels_HWC


def _words(sample: PicturedSample, classes: Sequence[str]) -> list[tuple[str, Colour]]:
    """Return the two lines below a sample, each with its colour."""
    if sample.truth is None or sample.predicted is None or sample.probability is None:
        return [("image, mask, prediction", INK), (f"{100 * sample.error:.1f} % of the pixels wrong", INK)]
    predicted = f"{100 * sample.probability:.0f}% {clean_name(classes[sample.predicted])}"
    is_right = sample.truth == sample.predicted
    return [(clean_name(classes[sample.truth]), INK), (predicted, _RIGHT if is_right else _WRONG)]


def legend(classes: Sequence[str], width: int) -> list[tuple[tuple[int, int], str, Colour]]:
    """Return the place, the name and the colour of each class, in lines of `width` pixels."""
    places, left, top = [], GAP, GAP
    for name, colour in zip(classes[:_MOST_NAMES], palette(classes).tolist(), strict=False):
        shown = drawable(name, 24)
        needed = 24 + (LETTER + 1) * len(shown)
        if left + needed > width and left > GAP:
            left, top = GAP, top + LINE
        places.append(((left, top), shown, (colour[0], colour[1], colour[2])))
        left += needed
    return places


def drawable(words: str, most: int) -> str:
    """Return words that fit, in letters that Pillow's font has."""
    return clean(words, most).replace("…", "...").encode("latin-1", "replace").decode("latin-1")
