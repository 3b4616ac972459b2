"""The files of the pictures of validations: written by a run, read by screens.

predictions/epoch-0012-step-34500.png    the samples, in groups, with what is predicted of them
predictions/epoch-0012-step-34500.json   where each one is in it, and the confusion matrix
predictions/data.png                     training images as the network gets them

The newest ones are kept, and those of the best validation.
"""

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mptui.data.pictures import Pixels, SamplePrediction, ValidationPictures
from mptui.errors import MptuiError
from mptui.events import finite_json
from mptui.io.files import Guard, read_regular, replace_file
from mptui.io.own_files import make_folder
from mptui.io.records import reader_of
from mptui.text import clean, clean_name

FOLDER, DATA = "predictions", "data.png"
VERSION = 3
"""Version of a record; before 3, samples had no `top`, and before 2, pictures of masks no errors in them."""

_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.png")
_LARGEST = 64 << 20
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class SampleRecord(SamplePrediction):
    """A sample in the picture; `box` is its left, top, width and height in pixels."""

    box: list[int]


@dataclass(frozen=True, slots=True)
class PictureRecord:
    """What is in a picture: see `ValidationPictures`; `confusion` has the cells that are not 0.

    A cell is its true class, its predicted class and its count; the cells are in the order of their counts.
    """

    version: int
    step: int
    epoch: int
    classes: list[str]
    groups: dict[str, list[SampleRecord]]
    confusion: list[list[int]] | None


_read = reader_of(PictureRecord)


def write(run: Path, pictures: ValidationPictures, guard: Guard = contextlib.nullcontext) -> str:
    """Write the two files of a validation, and remove those that are not kept.

    Returns:
        The picture in the run directory; "" if it can't be written.
    """
    # they import Pillow, which readers of names do without
    from mptui.data.pictures import draw, is_own_png, png_bytes

    name = f"epoch-{pictures.epoch:04}-step-{pictures.step}.png"
    path = run / FOLDER / name
    try:
        make_folder(path.parent)
        if os.path.lexists(path) and not is_own_png(path):
            return ""
        sheet, boxes = draw(pictures)
        record = PictureRecord(
            version=VERSION,
            step=pictures.step,
            epoch=pictures.epoch,
            classes=[clean(each, _LONGEST_NAME) for each in pictures.classes],
            groups={
                group: [
                    SampleRecord(
                        each.index,
                        clean_name(each.file),
                        each.error,
                        each.truth,
                        each.predicted,
                        each.probability,
                        list(box),
                        top=each.top,
                    )
                    for each, box in zip(samples, boxes[group], strict=True)
                ]
                for group, samples in pictures.groups.items()
            },
            confusion=None if pictures.confusion is None else counted(pictures),
        )
        text = json.dumps(finite_json(record), allow_nan=False)
        # the picture first: one without the other, on a full disk, is removed later by its name
        replace_file(path, png_bytes(sheet), guard)
        replace_file(path.with_suffix(".json"), text.encode(errors="backslashreplace"), guard)
        _prune(path, pictures)
    except (OSError, MptuiError):
        return ""
    return f"{FOLDER}/{name}"


def write_data(run: Path, tiles: Sequence[Pixels], guard: Guard = contextlib.nullcontext) -> str:
    """Write images of the training set, each [H, W, C], side by side.

    Returns:
        The file in the run directory; "" if it can't be written.
    """
    import numpy as np
    from PIL import Image

    from mptui.data.pictures import grid, is_own_png, png_bytes

    path = run / FOLDER / DATA
    try:
        make_folder(path.parent)
        if os.path.lexists(path) and not is_own_png(path):
            return ""
        sheet = grid(np.stack(tiles), columns=len(tiles))
        replace_file(path, png_bytes(Image.fromarray(sheet)), guard)
    except (OSError, MptuiError):
        return ""
    return f"{FOLDER}/{DATA}"


def counted(pictures: ValidationPictures) -> list[list[int]]:
    """Return the cells of the confusion matrix that are not 0, the largest count first."""
    assert pictures.confusion is not None
    true, predicted = pictures.confusion.nonzero()
    counts = pictures.confusion[true, predicted]
    order = (-counts).argsort(kind="stable")
    columns = (true[order].tolist(), predicted[order].tolist(), counts[order].tolist())
    return [list(cell) for cell in zip(*columns, strict=True)]


def _prune(written: Path, pictures: ValidationPictures) -> None:
    """Remove the files that are not kept; never those that were just written.

    Files of later steps, from before a return to an earlier state, count as newer ones.
    """
    from mptui.data.pictures import is_own_png

    pictures_there = ((_place_of(path), path) for path in written.parent.iterdir())
    found = sorted((place, path) for place, path in pictures_there if place and is_own_png(path))
    best = [path for (epoch, _), path in found if epoch == pictures.best_epoch][-1:]
    for _, path in found[: -pictures.keep or None]:
        if path not in (written, *best):
            if read(path) is not None:
                path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return the epoch and the step of a picture; None for other files."""
    found = _NAME.fullmatch(path.name)
    return None if found is None else (int(found[1]), int(found[2]))


def read(path: Path) -> PictureRecord | None:
    """Read what is in the picture `path`, safe to show; None if it is missing or damaged."""
    try:
        content = read_regular(path.with_suffix(".json"), _LARGEST)
        record: PictureRecord = _read(json.loads(content, object_hook=_with_top))
    except (OSError, TypeError, ValueError, KeyError, OverflowError, RecursionError):
        return None
    numbers = [number for cell in record.confusion or () for number in cell[:2]]
    for sample in (sample for samples in record.groups.values() for sample in samples):
        numbers += [number for number in (sample.truth, sample.predicted) if number is not None]
        numbers += [each.number for each in sample.top]
        if len(sample.box) != 4 or min(sample.box) < 0:
            return None
    cells_are_whole = all(len(cell) == 3 and cell[2] >= 0 for cell in record.confusion or ())
    if not cells_are_whole or not all(0 <= number < len(record.classes) for number in numbers):
        return None
    return replace(
        record,
        classes=[clean(name, _LONGEST_NAME) for name in record.classes],
        groups={clean(name, 24): [_cleaned(s) for s in samples] for name, samples in record.groups.items()},
    )


def _with_top(record: dict[str, object]) -> dict[str, object]:
    """Add what a sample of an earlier version lacks."""
    return {"top": [], **record} if "box" in record else record


def _cleaned(sample: SampleRecord) -> SampleRecord:
    return replace(sample, file=clean(sample.file))
