"""Finds masks among photographs that no name tells, by their pixels.

A mask lies beside its photograph and has the start of its name (`1.jpg` and `1_roi.png`), or has its name in
another folder; it takes far less of the disk, and has few values where the photograph has many. Names and
sizes of files are looked at for a sample of the set, and pixels only where those speak for masks.
"""

import os
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from mptui.data.scan.pixel_look import PixelLook
from mptui.data.scan.process_pool import Work, check_all

_LOOKED_AT, _FOLDERS, _DECODED = 256, 8, 16
"""Images whose names are looked at, folders in which a name is looked for, and pairs that are decoded."""
_AT_LEAST = 2
_SMALLER = 2
"""How many times less of the disk a mask takes than its photograph, at least."""
_PART = re.compile(r"[-_. ]+[^-_. ]*\Z")
_LOOKS: Work[PixelLook] = Work(
    "mptui.data.scan.pixel_look", None, lambda values: PixelLook(*values), lambda *_: PixelLook()
)

Pair = tuple[str, str]


def mask_among(images: Sequence[str], should_stop: Callable[[], bool]) -> Pair | None:
    """Return a mask among images, and its photograph; None if there seem to be none.

    Images with the same affix, or in the same folder, are masks if two are, and all that are seen can be.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    for pairs in _groups(images):
        chosen = pairs[:: -(-len(pairs) // _DECODED)]
        looks = next(
            check_all(iter([[(path, None) for pair in chosen for path in pair]]), _LOOKS, 1, should_stop)
        )
        masks, photographs = looks[::2], looks[1::2]
        certain = [pair for pair, *both in zip(chosen, masks, photographs, strict=True) if _are_a_pair(*both)]
        if len(certain) >= _AT_LEAST and all(mask.is_flat for mask in masks):
            return certain[0]
    return None


def _are_a_pair(mask: PixelLook, photograph: PixelLook) -> bool:
    same_size = (mask.width, mask.height) == (photograph.width, photograph.height)
    return mask.is_flat and mask.values > 1 and photograph.is_photograph and same_size


def _groups(images: Sequence[str]) -> Iterator[list[Pair]]:
    """Yield what can be masks by names and sizes of files, with the photographs; each group apart."""
    rows = random.Random(0).sample(range(len(images)), min(_LOOKED_AT, len(images)))
    paths = [path for row in sorted(rows) if os.path.isfile(path := images[row])]
    endings = {os.path.splitext(path)[1] for path in paths}
    folders = list(dict.fromkeys(map(os.path.dirname, paths)))[:_FOLDERS]
    found: defaultdict[str, list[Pair]] = defaultdict(list)
    large = set[str]()
    for path in paths:
        for group, other in (*_beside(path, endings), *_elsewhere(path, endings, folders)):
            found[group].append((path, other))
            if _SMALLER * os.path.getsize(path) > os.path.getsize(other):
                large.add(group)
    yield from (pairs for group, pairs in found.items() if group not in large and len(pairs) >= _AT_LEAST)


def _beside(path: str, endings: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files beside an image that have the start of its name, or its name with another ending.

    With each comes the group of the image: what its name has more, without numbers.
    """
    stem, ending = os.path.splitext(path)
    start = stem
    while os.path.basename(start):
        group = re.sub(r"[0-9]+", "", stem[len(start) :] + ending)
        files = (start + each for each in endings if start + each != path)
        yield from ((group, file) for file in files if os.path.isfile(file))
        shorter = _PART.sub("", start)
        if shorter == start:
            return
        start = shorter


def _elsewhere(path: str, endings: Collection[str], folders: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files of the same name in other folders; the group of the image is its folder."""
    folder, name = os.path.split(os.path.splitext(path)[0])
    files = (os.path.join(other, name + each) for other in folders for each in endings if other != folder)
    yield from ((folder, file) for file in files if os.path.isfile(file))
