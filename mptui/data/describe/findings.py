"""What a set has that makes a network look better than it is, or never learn a class, with the remedy."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mptui.data.core.parts import open_binary, status_of
from mptui.data.core.types import Dataset
from mptui.data.describe.lines import some
from mptui.data.formats.splits import FileSplit, MaskedSplit
from mptui.registry.samples import SampleKind

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
    return [*_same_images(dataset), *_classes(dataset, sampler)]


def _classes(dataset: Dataset, sampler: str) -> Iterator[DataFinding]:
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
