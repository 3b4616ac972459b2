"""Draws samples of a set into one picture: each with its class, or with its mask over it.

Shapes: H and W pixels, C channels.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mptui.data.core.class_colours import Palette, coloured, palette
from mptui.data.core.picture_sheet import FONT, GAP, INK, LETTER, LINE, PAPER, TITLE, WIDTH, drawable, legend
from mptui.data.core.types import BadSampleError, Dataset, Decoded, LabelledSplit, Mask, Pixels, Split
from mptui.data.transforms.resample import resized_mask
from mptui.registry.samples import SampleKind

SIDE = 128
"""Larger side of a sample in pixels."""

_TRAIN, _VAL = 24, 12
"""Number of samples of each half."""
_OPACITY = 0.55


def sample_sheet(dataset: Dataset) -> Image.Image:
    """Draw samples of both halves, of all classes in turn."""
    halves = [
        (f"{word}: {min(most, len(split))} of {len(split):,}", list(_samples(dataset, split, most)))
        for word, split, most in (("training", dataset.train, _TRAIN), ("validation", dataset.val, _VAL))
    ]
    keys = legend(dataset.classes, WIDTH) if dataset.kind is SampleKind.MASK else []
    columns, down = WIDTH // (SIDE + GAP), SIDE + LINE + GAP
    top = GAP + (keys[-1][0][1] + LINE if keys else 0)
    height = top + sum(TITLE + -(-len(samples) // columns) * down for _, samples in halves)
    sheet = Image.new("RGB", (WIDTH, height), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT)
    for (left, above), name, colour in keys:
        pen.rectangle((left, above + 2, left + 9, above + 11), colour, INK)
        pen.text((left + 14, above), name, INK, font)
    for title, samples in halves:
        pen.text((GAP, top), title, INK, font)
        for number, (picture, words) in enumerate(samples):
            left, above = GAP + number % columns * (SIDE + GAP), top + TITLE + number // columns * down
            sheet.paste(picture, (left, above))
            pen.text((left, above + SIDE), drawable(words, SIDE // LETTER), INK, font)
        top += TITLE + -(-len(samples) // columns) * down
    return sheet


def masked(sample: Decoded, colours: Palette, side: int = SIDE) -> Image.Image:
    """Return a sample of at most `side` pixels a side, its mask over it; a background isn't coloured."""
    image = Image.fromarray(_rgb(sample.image_HWC))
    image.thumbnail((side, side))
    if sample.mask_HW is None:
        return image
    mask_HW: Mask = resized_mask(sample.mask_HW, image.height, image.width)
    over_HW3, pixels_HW3 = coloured(mask_HW, colours), np.asarray(image)
    mixed_HW3 = (_OPACITY * over_HW3 + (1 - _OPACITY) * pixels_HW3).astype(np.uint8)
    return Image.fromarray(np.where(over_HW3.any(axis=-1, keepdims=True), mixed_HW3, pixels_HW3))


def chosen(split: Split, most: int) -> npt.NDArray[np.int64]:
    """Return the indices of some samples: of all classes in turn, or from the whole split in its order."""
    if not isinstance(split, LabelledSplit):
        return np.unique(np.linspace(0, len(split) - 1, most).round().astype(np.int64))
    labels = split.sample_labels
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order], side="left")
    turn = np.arange(len(order)) - starts  # the number of each sample in its class
    picked = order[np.lexsort((labels[order], turn))][:most]
    return picked[np.argsort(labels[picked], kind="stable")]


def _samples(dataset: Dataset, split: Split, most: int) -> Iterator[tuple[Image.Image, str]]:
    colours = palette(dataset.classes)
    for index in chosen(split, most).tolist():
        request = split.request(index)
        try:
            sample = request.read(SIDE)
        except BadSampleError as error:
            yield Image.new("RGB", (SIDE, SIDE), PAPER), error.reason
            continue
        words = request.name.rpartition("/")[2]
        if dataset.kind is SampleKind.CLASS and sample.label < len(dataset.classes):
            words = dataset.classes[sample.label]
        yield masked(sample, colours), words


def _rgb(image_HWC: Pixels) -> npt.NDArray[np.uint8]:
    """Return an image of any bands as RGB: the first three bands, or the first, stretched to 8 bits."""
    if image_HWC.dtype == np.uint8 and image_HWC.shape[2] == 3:
        return image_HWC
    bands = image_HWC[..., :3] if image_HWC.shape[2] >= 3 else np.repeat(image_HWC[..., :1], 3, axis=2)
    values = np.nan_to_num(bands.astype(np.float32), posinf=0, neginf=0)
    low, high = values.min(), values.max()
    scaled: npt.NDArray[np.uint8] = ((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return scaled
