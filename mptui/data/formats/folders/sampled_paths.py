"""Chooses some images of a set to look at: at random, of each folder, and those whose names are rare."""

import os
import random
from collections.abc import Iterator, Sequence

from mptui.data.formats.splits import PathTable

_AT_RANDOM = 256
_FOLDERS, _OF_FOLDER = 64, 4
_ENDINGS, _OF_ENDING = 32, 4
_RARE = 1 / 64
"""Share of the set below which a random choice may miss images whose names end alike."""


def sampled(images: Sequence[str]) -> list[str]:
    """Return some images that are files, in the order of the set; their number does not grow with the set."""
    rows = {*random.Random(0).sample(range(len(images)), min(_AT_RANDOM, len(images)))}
    if len(rows) < len(images):
        rows.update(_first_of_folders(images))
        if isinstance(images, PathTable):
            rows.update(images.rows_of_rare_endings(_RARE, _ENDINGS, _OF_ENDING))
    return [path for row in sorted(rows) if os.path.isfile(path := images[row])]


def _first_of_folders(images: Sequence[str]) -> Iterator[int]:
    """Yield the first rows of folders, whose images follow each other: by a few looks at each folder."""
    row = 0
    for _ in range(_FOLDERS):
        if row >= len(images):
            return
        yield from range(row, min(row + _OF_FOLDER, len(images)))
        row = _next_folder(images, row)


def _next_folder(images: Sequence[str], row: int) -> int:
    """Return the row after the images of a folder: by steps that double, then by halves."""
    folder, step = os.path.dirname(images[row]), 1
    while row + step < len(images) and os.path.dirname(images[row + step]) == folder:
        row, step = row + step, 2 * step
    inside, outside = row, min(row + step, len(images))
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if os.path.dirname(images[middle]) == folder:
            inside = middle
        else:
            outside = middle
    return outside
