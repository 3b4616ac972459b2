"""A set before its scan: its halves, the sizes of its images, and masks read by some of them."""

from collections.abc import Sequence

import numpy as np

from mptui.data.core.types import BadSampleError, Dataset, Split
from mptui.data.decode.image import opened
from mptui.data.decode.mask import opened_mask, survey
from mptui.data.describe.sample_sheet import chosen
from mptui.data.formats.folder_format import Found
from mptui.data.formats.masks.mask_classes import find_coding
from mptui.data.formats.splits import FileSplit, MaskedSplit, Rows
from mptui.errors import DataError
from mptui.registry.samples import SampleKind

_MOST_SIZES = 2000
"""Number of images whose headers are read for the sizes of a set."""


def listed_dataset(
    name: str, kind: SampleKind, found: Found, halves: tuple[Rows, Rows], shown: int, ignore_index: int | None
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
