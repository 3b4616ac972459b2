"""What a set was understood to be: in lines, as a document, as pictures and as a list."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mptui.data.address import is_part, joined_files, open_binary, status_of
from mptui.data.dataset import FileSplit, MaskedSplit, Rows
from mptui.data.decode import opened
from mptui.data.folder_format import Found
from mptui.data.mask_classes import find_coding, setting_of
from mptui.data.masks import opened_mask, survey
from mptui.data.pictures import (
    FONT,
    GAP,
    INK,
    LETTER,
    LINE,
    PAPER,
    TITLE,
    WIDTH,
    Palette,
    bright,
    coloured,
    drawable,
    legend,
)
from mptui.data.transforms import resized_mask
from mptui.data.types import (
    BadSampleError,
    Dataset,
    Decoded,
    LabelledSplit,
    LeftOut,
    Mask,
    Pixels,
    Reading,
    Split,
)
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from mptui.registry.tasks import task_for
from mptui.text import clean

# What a set has that makes a network look better than it is, or never learn a class, with the remedy
# ---------------------------------------------------------------------------------------------------

_UNEVEN = 10
"""Ratio of images in the largest and the smallest class from which it is reported."""
_COMPARED = 64
"""Number of validation images that are looked for in training."""


@dataclass(frozen=True, slots=True)
class DataFinding:
    """A fact about a set that a person should know before the first epoch, and what to do."""

    what: str
    do: str


def data_findings(dataset: Dataset, sampler: str) -> list[DataFinding]:
    """Return what a person should know of a set.

    Args:
        dataset: The opened set.
        sampler: `data.sampler`.
    """
    return [*_same_images(dataset), *_class_findings(dataset, sampler)]


def _class_findings(dataset: Dataset, sampler: str) -> Iterator[DataFinding]:
    if dataset.kind is not SampleKind.CLASS or len(dataset.class_counts) != len(dataset.classes):
        return
    pairs = [
        (count, name) for count, name in zip(dataset.class_counts, dataset.classes, strict=True) if count
    ]
    if single := [name for count, name in pairs if count == 1]:
        yield DataFinding(
            f"classes with one training image: {some(single)}",
            "collect more of them, or leave the classes out",
        )
    largest, smallest = max(pairs, key=lambda pair: pair[0]), min(pairs, key=lambda pair: pair[0])
    if largest[0] > _UNEVEN * smallest[0] and sampler != "balanced":
        yield DataFinding(
            f"unbalanced classes: {largest[1]} has {largest[0]:,} images, {smallest[1]} {smallest[0]:,}",
            "--set data.sampler=balanced, with training.primary_metric=balanced_accuracy",
        )


def _same_images(dataset: Dataset) -> Iterator[DataFinding]:
    """Compare some validation images with the training images of the same place in their folder."""
    train, val = dataset.train, dataset.val
    if not isinstance(train, FileSplit | MaskedSplit) or not isinstance(val, FileSplit | MaskedSplit):
        return
    if dataset.held_out or "\0" in train.paths[int(train.rows[0])]:
        return
    roots = [_root(split) for split in (train, val)]
    if roots[0] == roots[1]:
        return
    rows = val.rows[np.unique(np.linspace(0, len(val) - 1, _COMPARED).round().astype(int))]
    files = [val.paths[int(row)] for row in rows]
    same = sum(_is_same(file, os.path.join(roots[0], os.path.relpath(file, roots[1]))) for file in files)
    if same:
        yield DataFinding(
            f"{same} of {len(files)} validation images that were compared are training images, too: the"
            " validation doesn't measure what the network has not seen",
            "give validation images of its own, or remove its folder: a share is then held out",
        )


def _root(split: FileSplit | MaskedSplit) -> str:
    ends = [os.path.dirname(split.paths[int(split.rows[place])]) for place in (0, -1)]
    return os.path.commonpath(ends)


def _is_same(file: str, other: str) -> bool:
    try:
        if os.path.samefile(file, other):
            return True
        if status_of(file)[0] != status_of(other)[0]:
            return False
        with open_binary(file) as one, open_binary(other) as two:
            return one.read() == two.read()
    except OSError:
        return False


# What a set was understood to be, as a document for programs
# -----------------------------------------------------------

FORMAT_VERSION = 1

_MOST_FILES = 100


def reading_document(dataset: Dataset) -> dict[str, Any]:
    """Return the facts of a reading in JSON's types; of left-out files the first names of each reason."""
    reading = dataset.reading
    counts = list(map(int, dataset.class_counts))
    val_counts = list(() if reading is None else reading.val_counts)
    return {
        "layout": None if reading is None else reading.layout,
        "split": None if reading is None else reading.split,
        "train_samples": len(dataset.train),
        "val_samples": len(dataset.val),
        "test_samples": 0 if reading is None else len(reading.test),
        "classes": [
            {
                "name": name,
                "train": counts[number] if number < len(counts) else None,
                "val": val_counts[number] if number < len(val_counts) else None,
            }
            for number, name in enumerate(dataset.classes)
        ],
        "sides": None
        if dataset.sides is None
        else dict(zip(("smallest", "median", "largest"), dataset.sides, strict=True)),
        "pixels": {"bands": dataset.pixels.bands, "dtype": dataset.pixels.dtype},
        "mask_code": [] if reading is None else list(reading.mask_code),
        "orientation": "" if reading is None else reading.orientation,
        "cleaned": [] if reading is None else list(reading.cleaned),
        "left_out": []
        if reading is None
        else [
            {"reason": each.reason, "count": each.count, "files": list(each.files[:_MOST_FILES])}
            for each in reading.left_out
        ],
    }


def reading_changes(before: object, now: dict[str, Any]) -> list[str]:
    """Describe how a set is read otherwise than it was.

    Args:
        before: The document that was kept; anything else, as in records of early versions: unknown.
        now: The present one.
    """
    if not isinstance(before, dict):
        return []
    told = [
        f"its {word} is {now[key]!r} instead of {before[key]!r}"
        for key, word in (("layout", "format"), ("split", "split"))
        if before.get(key) is not None and before[key] != now[key]
    ]
    lay, lie = (setting_of(str(each.get("orientation", ""))) for each in (before, now))
    if lay != lie and "auto" not in {lay, lie}:
        told.append(
            f"photographs stored turned (EXIF): {now['orientation']}; before: {before['orientation']}"
        )
    codes = before.get("mask_code")
    if isinstance(codes, list) and codes != now["mask_code"]:
        gone = [str(code) for code in codes if code not in now["mask_code"]]
        new = [str(code) for code in now["mask_code"] if code not in codes]
        told.append(f"masks are read otherwise: {', '.join(new)} instead of {', '.join(gone)}")
    return told


def document(where: str, dataset: Dataset, findings: list[DataFinding]) -> dict[str, Any]:
    """Return the document of `mptui data --json`."""
    return {
        "version": FORMAT_VERSION,
        "data": where,
        "name": dataset.name,
        "task": task_for(dataset.kind),
        **reading_document(dataset),
        "warnings": list(dataset.warnings),
        "findings": [{"what": each.what, "do": each.do} for each in findings],
    }


# What a set was understood to be, in four lines: its split, its classes, its images, what is left out
# ----------------------------------------------------------------------------------------------------

_MOST = 4
_LONGEST = 300


def reading_lines(dataset: Dataset) -> list[str]:
    """Return what a set was understood to be in four lines, or three if its files have not been listed."""
    reading = dataset.reading
    where = "" if reading is None else f"{reading.layout}, "
    counts = f"{len(dataset.train):,} training and {len(dataset.val):,} validation images"
    lines = [
        f"Data: {dataset.name}: {where}{counts}{'' if reading is None else f'; split: {reading.split}'}",
        f"Classes: {_classes(dataset)}",
        f"Images: {'; '.join([*image_facts(dataset), *_mask_code(dataset)])}",
    ]
    if reading is not None:
        lines.append(f"Left out: {_left_out(reading)}")
    return [clean(line, _LONGEST) for line in lines]


def image_facts(dataset: Dataset) -> Iterator[str]:
    """Yield sizes and format of a set's images, the orientation of its masks, and what was cleaned."""
    if dataset.sides is not None:
        low, median, high = dataset.sides
        yield f"{low} px" if low == high else f"shorter sides {low} to {high} px, median {median}"
    yield str(dataset.pixels)
    if (reading := dataset.reading) is None:
        return
    if reading.orientation:
        yield reading.orientation
    yield from reading.cleaned


def _mask_code(dataset: Dataset) -> Iterator[str]:
    if dataset.reading is not None and dataset.reading.mask_code:
        yield f"masks: {some(dataset.reading.mask_code)}"


def reason_words(left_out: LeftOut) -> str:
    """Return a reason with its number of files: `12 (has no mask)`."""
    return f"{left_out.count:,} ({clean(left_out.reason, 80)})"


def some(names: Sequence[str]) -> str:
    """Join the first few names, which are safe since they were read."""
    shown = ", ".join(clean(name, 60) for name in names[:_MOST])
    return shown if len(names) <= _MOST else f"{shown}, … ({len(names)} in all)"


def _classes(dataset: Dataset) -> str:
    if dataset.kind is SampleKind.IMAGE:
        return "none: images alone are learned"
    names, counts = dataset.classes, list(dataset.class_counts)
    if len(counts) != len(names):
        return f"{len(names)}: {some(names)}"
    unit = "training pixels" if dataset.kind is SampleKind.MASK else "training images"
    if len(names) <= _MOST:
        each = (f"{clean(name, 60)} {count:,}" for name, count in zip(names, counts, strict=True))
        return f"{len(names)}: {', '.join(each)} {unit}"
    low, high = counts.index(min(counts)), counts.index(max(counts))
    if counts[low] == counts[high]:
        return f"{len(names)}: {some(names[:_MOST])}, …; {counts[low]:,} {unit} each"
    return (
        f"{len(names)}: {some(names[:_MOST])}, …; {clean(names[low], 60)} has the fewest {unit},"
        f" {counts[low]:,}, {clean(names[high], 60)} the most, {counts[high]:,}"
    )


def _left_out(reading: Reading) -> str:
    parts = [reason_words(each) for each in reading.left_out[:_MOST]]
    if (more := sum(each.count for each in reading.left_out[_MOST:])) > 0:
        parts.append(f"{more:,} for other reasons")
    if reading.test:
        parts.append(f"{len(reading.test):,} of a test half")
    return ", ".join(parts) if parts else "nothing"


# A set before its scan: its halves, the sizes of its images, and masks read by some of them
# ------------------------------------------------------------------------------------------

_MOST_SIZES = 2000
"""Number of images whose headers are read for the sizes of a set."""


def listed_dataset(
    name: str,
    kind: SampleKind,
    found: Found,
    halves: tuple[Rows, Rows],
    *,
    shown: int,
    ignore_index: int | None,
) -> Dataset:
    """Return a listed set as if all its files could be used.

    Args:
        name: Its name.
        kind: Kind of the samples.
        found: Its files.
        halves: Rows of training and of validation.
        shown: Number of samples that will be shown, by whose masks all are read.
        ignore_index: The mask value of ignored pixels.
    """
    count = len(found.images)
    labels = np.zeros(count, np.int64) if found.labels is None else found.labels
    train, val = (FileSplit(found.images, labels, rows) for rows in halves)
    is_listed = kind is SampleKind.CLASS
    return Dataset(
        name=name,
        kind=kind,
        classes=found.classes if found.coding is None else found.coding.classes,
        train=_with_masks(found, train, shown, ignore_index),
        val=val,
        class_counts=np.bincount(labels[train.rows], minlength=len(found.classes)).tolist()
        if is_listed
        else (),
        held_out=found.train_rows == count,
    )


def header_sides(train: Split, val: Split) -> tuple[int, int, int] | None:
    """Return the smallest, the median and the largest shorter side of the images of a set, by their headers.

    Of more than 2,000 images those are read that lie evenly in it; None: none could be read.
    """
    sides = []
    for split in (train, val):
        paths: Sequence[str] = getattr(split, "paths", ())
        most = _MOST_SIZES * len(split) // max(1, len(train) + len(val))
        for index in (
            np.unique(np.linspace(0, len(split) - 1, max(1, most)).round().astype(int)) if paths else ()
        ):
            try:
                with opened(paths[int(split.rows[index])]) as image:  # type: ignore[attr-defined] # has paths
                    sides.append(min(image.size))
            except BadSampleError:
                continue
    return (min(sides), int(np.median(sides)), max(sides)) if sides else None


def _with_masks(
    found: Found, train: FileSplit, shown: int, ignore_index: int | None
) -> FileSplit | MaskedSplit:
    """Return the training half with masks if some of them tell how they are read."""
    if found.masks is None:
        return train
    surveys = []
    for index in chosen(train, shown).tolist():
        try:
            with opened_mask(found.masks[int(train.rows[index])]) as mask:
                surveys.append(survey(found.masks[int(train.rows[index])], mask))
        except BadSampleError:
            continue
    try:
        coding = found.coding or find_coding(surveys, ignore_index, found.class_file, found.void).coding
    except DataError:  # which the scan reports
        return train
    return MaskedSplit(found.images, found.masks, coding, train.rows)


# Draws samples of a set into one picture: each with its class, or with its mask over it
# --------------------------------------------------------------------------------------
# Shapes: H and W pixels, C channels.

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
    colours = bright(dataset.classes)
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


# Writes what a set was understood to be as a list of images, which one may correct and train on
# ----------------------------------------------------------------------------------------------

Row = tuple[str, str, str]
"""An image, its label or mask, and its split."""


def list_text(dataset: Dataset, out: Path) -> str:
    """Return a set as CSV, of paths from the folder of `out` if they are in it.

    Raises:
        DataError: Its images are not files, or have names that are not in UTF-8.
    """
    folder = os.path.abspath(out.parent)
    target = {SampleKind.CLASS: "label", SampleKind.MASK: "mask", SampleKind.IMAGE: ""}[dataset.kind]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [place for place, name in enumerate(("image", target, "split")) if name]
    writer.writerow([("image", target, "split")[place] for place in columns])
    for row in _rows(dataset):
        cells = (
            _from(folder, row[0]),
            _from(folder, row[1]) if target == "mask" and row[1] else row[1],
            row[2],
        )
        writer.writerow([cells[place] for place in columns])
    try:
        text.getvalue().encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{dataset.name}: a file has a name that is not in UTF-8", hint="rename it: a list is in UTF-8"
        ) from error
    return text.getvalue()


def _rows(dataset: Dataset) -> Iterator[Row]:
    for split, word in ((dataset.train, "train"), (dataset.val, "val")):
        for image, target in _list_rows(dataset, split):
            yield image, target, word
    for image in () if dataset.reading is None else dataset.reading.test:
        yield image, "", "test"


def _list_rows(dataset: Dataset, split: Split) -> Iterator[tuple[str, str]]:
    if not isinstance(split, FileSplit | MaskedSplit) or any(
        is_part(split.paths[row]) for row in split.rows[:1].tolist()
    ):
        raise DataError(
            f"{dataset.name}: its images are not files of their own, which a list can name",
            hint="train on it as it is, or unpack it first",
        )
    for row in split.rows.tolist():
        if isinstance(split, MaskedSplit):
            if len(joined_files(split.mask_paths[row])) > 1:
                raise DataError(
                    f"{dataset.name}: {split.paths[row]} has several masks, of which a list can name one",
                    hint="train on it as it is, or join the masks of each image into one file",
                )
            yield split.paths[row], split.mask_paths[row]
        else:
            yield split.paths[row], dataset.classes[int(split.labels[row])]


def _from(folder: str, path: str) -> str:
    path = os.path.abspath(path)
    return os.path.relpath(path, folder) if path.startswith(folder.rstrip("/") + "/") else path
