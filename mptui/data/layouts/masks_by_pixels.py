"""Finds masks among photographs that no name tells, by their pixels.

A mask lies beside its photograph and has the start of its name (`1.jpg` and `1_roi.png`), or has its name in
another folder; or all pictures of a folder are masks, of any names. It takes far less of the disk, and has
few values where the photograph has many. Names and sizes of files are looked at for a sample of the set, and
pixels only where those speak for masks.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median

from mptui.data.layouts.walk import sampled
from mptui.data.scan import FEW, PixelLook, Sample, Work, check_all

_GROUPS, _DECODED = 16, 16
"""Groups of images that are looked at, and pairs of each that are decoded."""
_FOLDERS = 8
"""Folders beside that of an image in which its name is looked for."""
_AT_LEAST = 2
_SMALLER = 2
"""How many times less of the disk a mask takes than its photograph, at least."""
_PLAIN = frozenset({".bmp", ".tif", ".tiff"})
"""Endings of files whose size does not tell how many values they have."""
_OTHER_SHAPE = 0.05
"""Difference of the aspect ratios of a mask and its photograph, as a share, at most."""
_PART = re.compile(r"[-_. ]+[^-_. ]*\Z")
_NUMBER = re.compile(r"[0-9]+")
_LOOKS: Work[PixelLook] = Work(
    "mptui.data.scan:look_at_pixels", None, lambda values: PixelLook(*values), lambda *_: PixelLook()
)


@dataclass(frozen=True, slots=True)
class MaskedPair:
    """A mask, and its photograph: by their names, or one of those beside the folder of the masks."""

    mask: str
    photograph: str
    by_name: bool


@dataclass(slots=True)
class _Group:
    """Images whose names have one thing in common, each with what may be its photograph."""

    by_name: bool
    pairs: list[MaskedPair] = field(default_factory=list)


def mask_among(
    images: Sequence[str], should_stop: Callable[[], bool], *, labelled: bool = False
) -> MaskedPair | None:
    """Return a mask among images, and its photograph; None if there seem to be none.

    Args:
        images: The images, those of a folder one after the other.
        should_stop: Called several times per second.
        labelled: Whether folders are classes: pictures of few values may be one, unless they have the shapes
            of the photographs, and are as many.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    fits = _shaped_alike if labelled else _of_any_shape
    for group in islice(_groups(sampled(images), labelled=labelled), _GROUPS):
        chosen = group.pairs[:: -(-len(group.pairs) // _DECODED)]
        files: list[Sample] = [(path, None) for pair in chosen for path in (pair.mask, pair.photograph)]
        looks = next(check_all(iter([files]), _LOOKS, 1, should_stop))
        masks, photographs = looks[::2], looks[1::2]
        certain = [
            pair
            for pair, *both in zip(chosen, masks, photographs, strict=True)
            if _are_a_pair(*both) and fits(*both)
        ]
        if not certain or not all(mask.is_flat for mask in masks):
            continue
        if group.by_name and len(group.pairs) > 1:
            found = len(certain) >= _AT_LEAST
        else:  # names say little
            found = 2 * len(certain) >= len(chosen) and all(mask.values <= FEW for mask in masks)
        if found:
            return certain[0]
    return None


def _are_a_pair(mask: PixelLook, photograph: PixelLook) -> bool:
    return mask.is_flat and mask.values > 1 and photograph.is_photograph


def _of_any_shape(_mask: PixelLook, _photograph: PixelLook) -> bool:
    return True


def _shaped_alike(mask: PixelLook, photograph: PixelLook) -> bool:
    return abs(mask.width * photograph.height / (mask.height * photograph.width) - 1) <= _OTHER_SHAPE


def _groups(paths: Sequence[str], *, labelled: bool) -> Iterator[_Group]:
    """Yield what can be masks by names and sizes of files, with the photographs."""
    found: defaultdict[str, _Group] = defaultdict(lambda: _Group(by_name=True))
    large = set[str]()
    endings = {os.path.splitext(path)[1] for path in paths}
    places = _Places(paths)
    for path in paths:
        for group, other in (*_beside(path, endings), *places.elsewhere(path, endings)):
            found[group].pairs.append(MaskedPair(path, other, by_name=True))
            if _is_large(path, other):
                large.add(group)
    yield from (group for name, group in found.items() if name not in large)
    yield from places.apart(labelled=labelled)


def _is_large(path: str, other: str) -> bool:
    if os.path.splitext(path)[1].lower() in _PLAIN:
        return False
    return _SMALLER * os.path.getsize(path) > os.path.getsize(other)


def _beside(path: str, endings: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files beside an image that have the start of its name, or its name with another ending.

    With each comes the group of the image: what its name has more, without numbers.
    """
    stem, ending = os.path.splitext(path)
    start = stem
    while os.path.basename(start):
        group = _NUMBER.sub("", stem[len(start) :] + ending)
        files = (start + each for each in endings if start + each != path)
        yield from ((group, file) for file in files if os.path.isfile(file))
        shorter = _PART.sub("", start)
        if shorter == start:
            return
        start = shorter


class _Places:
    """The folders of some images, from the one that has all of them on."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._root = os.path.commonpath([*map(os.path.dirname, paths)] or [""])
        self._folders = {path: _parts(os.path.relpath(os.path.dirname(path), self._root)) for path in paths}
        self._inside: defaultdict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        """Folders in those of one name, whatever its numbers."""
        for folders in self._folders.values():
            for level, name in enumerate(folders):
                self._inside[_plain(folders[:level])][name] = None

    def elsewhere(self, path: str, endings: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield files of the same name where a folder is another, more or less; the group is that folder."""
        folders, stem = self._folders[path], os.path.splitext(os.path.basename(path))[0]
        for level in range(len(folders) + 1):
            before, name, after = folders[:level], "".join(folders[level : level + 1]), folders[level + 1 :]
            group = os.path.join("", *_plain((*before, name)))
            others = (each for each in ("", *self._inside[_plain(before)]) if each != name)
            for other in islice(others, _FOLDERS):
                place = os.path.join(self._root, *before, other, *after, stem)
                yield from ((group, file) for each in endings if os.path.isfile(file := place + each))

    def apart(self, *, labelled: bool) -> Iterator[_Group]:
        """Yield folders whose files take less of the disk than those beside them."""
        for inside in self._by_folder().values():
            sizes = {name: median(map(os.path.getsize, paths)) for name, paths in inside.items()}
            for name, paths in inside.items():
                others = [each for other in inside if other != name for each in inside[other]]
                is_plain = os.path.splitext(paths[0])[1].lower() in _PLAIN
                if len(paths) < _AT_LEAST or not others:
                    continue
                least = median(sizes[other] for other in inside if other != name)
                if not is_plain and _SMALLER * sizes[name] > least:
                    continue
                if not labelled or _are_as_many(paths, others):
                    yield _Group(by_name=False, pairs=[*_paired(paths, others)])

    def _by_folder(self) -> Mapping[tuple[str, ...], Mapping[str, list[str]]]:
        """Return the images in folders of one name, by the name of the folder that has these."""
        found: defaultdict[tuple[str, ...], defaultdict[str, list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for path, folders in self._folders.items():
            for level, name in enumerate((*_plain(folders), "")):
                found[_plain(folders[:level])][name].append(path)
        return found


def _parts(folder: str) -> tuple[str, ...]:
    return () if folder == os.curdir else tuple(folder.split(os.sep))


def _plain(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(_NUMBER.sub("#", name) for name in folders)


def _paired(masks: Iterable[str], photographs: Sequence[str]) -> Iterator[MaskedPair]:
    """Pair each mask with a photograph: of a folder beside its own, where there is one."""
    above = {os.path.dirname(os.path.dirname(each)): each for each in photographs}
    others = cycle(photographs)
    for mask in masks:
        photograph = above.get(os.path.dirname(os.path.dirname(mask))) if len(above) > 1 else None
        yield MaskedPair(mask, photograph or next(others), by_name=False)


def _are_as_many(masks: Sequence[str], photographs: Iterable[str]) -> bool:
    """Whether a folder of masks has as many files as one of photographs, or as all of them."""
    own = os.path.dirname(masks[0])
    folders = dict.fromkeys(map(os.path.dirname, photographs))
    counts = [len(os.listdir(folder)) for folder in islice(folders, _FOLDERS)]
    return len(os.listdir(own)) in (*counts, sum(counts))
