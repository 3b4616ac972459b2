"""Draws the samples of a validation into one picture, in groups, with what is predicted of each."""

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from mptui.io.files import open_regular
from mptui.text import clean

# Colours of classes in pictures of masks: those of PASCAL VOC
# ------------------------------------------------------------

BACKGROUND = "background"

_COLOURS = 256
VOID = (224, 224, 192)

Palette = npt.NDArray[np.uint8]


def palette(classes: Sequence[str]) -> Palette:
    """Return a colour for each class, [256, 3]; more classes share colours. A background is black.

    The colours are those of PASCAL VOC, where each bit of a number sets a bit of a channel, highest first.
    """
    numbers = np.arange(_COLOURS) + (classes[0] != BACKGROUND)
    colours_N3 = np.zeros((_COLOURS, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours_N3[:, channel] |= ((numbers >> (3 * bit + channel)) & 1).astype(np.uint8) << (7 - bit)
    return colours_N3


_BRIGHTEST = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (240, 228, 66), (204, 121, 167), (213, 94, 0))
"""Those of Okabe and Ito, told apart with any colour vision."""
_DARKEST = 96
"""Least value of a channel of the others."""


def bright(classes: Sequence[str]) -> Palette:
    """Return a colour for each class, [256, 3], that is legible on black: for pictures that are looked at."""
    first = int(classes[0] == BACKGROUND)
    colours_N3 = (_DARKEST + palette(classes) * ((255 - _DARKEST) / 255)).astype(np.uint8)
    colours_N3[first : first + len(_BRIGHTEST)] = _BRIGHTEST
    colours_N3[:first] = 0
    return colours_N3


MASK_PARTS = ("image", "truth", "prediction", "errors")
"""The parts of a picture of a sample with a mask, side by side."""
SEAM = 2
"""Pixels between them."""
HIT, MISSED, EXTRA = (0, 114, 178), (230, 159, 0), (255, 255, 255)
"""Colours of errors on black, apart in light, too."""


def errors_of(
    truth_HW: npt.NDArray[np.integer], predicted_HW: npt.NDArray[np.integer], classes: Sequence[str]
) -> npt.NDArray[np.uint8]:
    """Return where a prediction is right and wrong as RGB, [H, W, 3].

    A pixel of a class is hit, or missed where another one is predicted; one of the background for which a
    class is predicted is extra. Ignored pixels are cream.
    """
    background = 0 if classes[0] == BACKGROUND else -1
    is_wrong = truth_HW != predicted_HW
    pixels_HW3 = np.zeros((*truth_HW.shape, 3), np.uint8)
    pixels_HW3[~is_wrong & (truth_HW != background)] = HIT
    pixels_HW3[is_wrong & (truth_HW != background)] = MISSED
    pixels_HW3[is_wrong & (truth_HW == background)] = EXTRA
    pixels_HW3[truth_HW < 0] = VOID
    return pixels_HW3


def coloured(mask_HW: npt.NDArray[np.integer], colours: Palette) -> npt.NDArray[np.uint8]:
    """Return a mask of class numbers as RGB, [H, W, 3]; ignored pixels, below 0, are cream, as VOC's void."""
    pixels_HW3: npt.NDArray[np.uint8] = colours[mask_HW % _COLOURS]
    pixels_HW3[mask_HW < 0] = VOID
    return pixels_HW3


# PNG files of images in memory, and grids of many images in one
# --------------------------------------------------------------
# Shapes: N images, H and W pixels, C channels.

Pixels = npt.NDArray[np.uint8]

_PROGRAM = "mptui"
_HEAD = 4096
"""Bytes at the beginning of a file, with its text."""
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
    """Return the content of a PNG file, which names the program that made it; see `is_own_png`."""
    content, words = io.BytesIO(), PngInfo()
    words.add_text("Software", _PROGRAM)
    image.save(content, "PNG", pnginfo=words)
    return content.getbuffer()


def is_own_png(path: Path) -> bool:
    """Whether a file is a picture of `png_bytes`; others are not to be removed or replaced."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return b"tEXtSoftware\0" + _PROGRAM.encode() in file.read(_HEAD)
    except OSError:
        return False


# Samples of a validation as small pictures, and what the network predicted of them. Imports no torch
# ---------------------------------------------------------------------------------------------------

WORST, RANDOM, BY_CLASS = "worst", "random", "by class"
"""Groups of samples: the worst of all; the same ones at each validation; the worst of each class."""


CAPTION = 28
"""Height in pixels of the words below a sample in a picture: two lines."""


@dataclass(frozen=True, slots=True)
class ClassShare:
    """The number of a class, and its probability."""

    number: int
    probability: float


@dataclass(frozen=True, slots=True)
class SamplePrediction:
    """A sample of a validation, and what is predicted of it.

    Attributes:
        index: Its index in the validation set.
        file: Its file, or its name in the set.
        error: The cross-entropy of its class; with masks, the share of valid pixels of a wrong class.
        truth: Its class; None with masks.
        predicted: The most probable class; None with masks.
        probability: That of the predicted class; None with masks.
        top: The most probable classes; empty with masks.
    """

    index: int
    file: str
    error: float
    truth: int | None
    predicted: int | None
    probability: float | None
    top: list[ClassShare] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True, slots=True)
class PicturedSample(SamplePrediction):
    """A sample with its picture, RGB; with masks `MASK_PARTS` side by side."""

    pixels_HWC: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ValidationPictures:
    """Pictures of a validation.

    Attributes:
        step: Optimizer step.
        epoch: Epoch, from 1.
        best_epoch: That of the best validation so far; 0: none.
        classes: The names of the K classes.
        groups: Group -> its samples.
        confusion: The confusion matrix of all samples, or pixels, [K, K]: rows are true classes. None: not
            kept.
        keep: Number of newest validations whose pictures are kept on disk, besides the best.
    """

    step: int
    epoch: int
    best_epoch: int
    classes: tuple[str, ...]
    groups: dict[str, list[PicturedSample]]
    confusion: npt.NDArray[np.int64] | None
    keep: int

    @property
    def images(self) -> int:
        """Number of pictures."""
        return sum(map(len, self.groups.values()))


# Draws the samples of a validation into one picture, in groups, with what is predicted of each
# ---------------------------------------------------------------------------------------------
# Shapes: H and W pixels, C channels.

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
        return [(", ".join(MASK_PARTS), INK), (f"{100 * sample.error:.1f} % of the pixels wrong", INK)]
    predicted = f"{100 * sample.probability:.0f}% {clean(classes[sample.predicted])}"
    is_right = sample.truth == sample.predicted
    return [(clean(classes[sample.truth]), INK), (predicted, _RIGHT if is_right else _WRONG)]


def legend(classes: Sequence[str], width: int) -> list[tuple[tuple[int, int], str, Colour]]:
    """Return the place, the name and the colour of each class, in lines of `width` pixels."""
    places, left, top = [], GAP, GAP
    for name, colour in zip(classes[:_MOST_NAMES], bright(classes).tolist(), strict=False):
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
