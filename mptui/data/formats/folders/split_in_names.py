"""Finds splits that the names of images say, where the layout has none: one that is drawn would mix them."""

import os
import random
from collections import Counter

from mptui.data.formats.folder_format import Found
from mptui.data.formats.folders.split_words import TEST, TRAIN, VAL, folder_words, split_of_file

_LOOKED_AT = 512
_MOST = 0.9
"""Share of the images that must say their split."""


def split_in_names(path: str, found: Found) -> dict[str, int]:
    """Return how many of some images are of each split, by their names or folders; empty: too few say it.

    Words that go with the class of an image, as `test_bench`, are none of a split.

    Args:
        path: The set.
        found: Its images; the names of class folders are not looked at.
    """
    images = found.images
    rows = random.Random(0).sample(range(len(images)), min(_LOOKED_AT, len(images)))
    said = {row: _split_of(os.path.relpath(images[row], path), found) for row in rows}
    counts = Counter(split for split in said.values() if split)
    if len(counts) < 2 or not counts[TRAIN] or counts.total() < _MOST * len(rows):
        return {}
    if found.labels is not None and len(found.classes) > 1:
        splits: dict[int, set[str]] = {}
        for row, split in said.items():
            splits.setdefault(int(found.labels[row]), set()).add(split)
        if all(len(each) == 1 for each in splits.values()):
            return {}
    return dict(counts)


def _split_of(name: str, found: Found) -> str:
    folders, stem = os.path.split(os.path.splitext(name)[0])
    parts = folders.split(os.sep)
    if found.labels is not None:
        parts = [part for part in parts if part not in found.classes]
    said = {_plain(folder_words(part).split) for part in parts if folder_words(part).exact}
    said = (said | {_plain(split_of_file(stem))}) - {""}
    return said.pop() if len(said) == 1 else ""


def _plain(split: str) -> str:
    return split if split in {TRAIN, VAL, TEST} else ""
