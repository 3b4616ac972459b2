"""Samples in packed files: where the bytes of each lie, its name and its label."""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.address import status_of
from mptui.data.dataset import PartTable, PathTable, Rows
from mptui.data.folder_format import Found
from mptui.data.layouts.split_words import TEST, TRAIN, UNLABELLED, VAL, folder_words, split_of_file
from mptui.data.layouts.walk import leads_to, natural_key, unreadable
from mptui.data.masks import CLASS_FILE
from mptui.data.types import Problem
from mptui.errors import DataError, TwoReadingsError
from mptui.io.cache import cache_folder, load_arrays, save_arrays
from mptui.registry.names import SampleKind
from mptui.text import clean, clean_name, shell_word, some

# List of the samples in a packed file: where the bytes of each lie, its name and its label
# -----------------------------------------------------------------------------------------
# A list is cached, as a shard has no table of contents: to find its images, all their headers are read.

PLACE = np.dtype([("at", "<i8"), ("size", "<i8"), ("mask_at", "<i8"), ("mask_size", "<i8"), ("label", "<i4")])
"""Where the image and the mask of a sample lie in bytes, and the place of its label in `Listing.labels`."""
LONGEST_LABEL = 1000
"""Longest text of a label in characters."""

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of one packed file."""

    file: str
    """The file with the bytes of the images."""
    title: str
    """The packed file in messages; another than `file` where the images were unpacked."""
    names: Sequence[str]
    """Name of each sample; empty: it has none but its number."""
    places: npt.NDArray[np.void]
    """[N] of `PLACE`."""
    labels: tuple[str, ...]
    """The different labels, as text; numbers are decimal."""
    classes: tuple[str, ...] | None = None
    """Names of the classes 0, 1, …, where the file declares them."""
    problems: tuple[Problem, ...] = ()
    """Samples that can't be used."""
    warnings: tuple[str, ...] = ()
    from_text: int = 0
    """Number of samples whose label is a text beside the image, which may be a caption."""


@dataclass(slots=True)
class ListingBuilder:
    """Collects the samples of one packed file."""

    title: str
    names: list[str] = field(default_factory=list)
    places: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    from_text: int = 0
    """See `Listing`."""
    _labels: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, image: tuple[int, int], mask: tuple[int, int] | None, label: str | None) -> None:
        """Add a sample: offset and size of its image and its mask in bytes, and its label."""
        code = -1 if label is None else self._labels.setdefault(label, len(self._labels))
        self.names.append(name)
        self.places.append((*image, *(mask or (0, 0)), code))

    def refuse(self, name: str, reason: str) -> None:
        """Record that a sample can't be used."""
        self.problems.append(Problem(f"{self.title}:{name}", reason))

    def listing(
        self, file: str, classes: tuple[str, ...] | None = None, warnings: tuple[str, ...] = ()
    ) -> Listing:
        """Return the list."""
        places = np.array(self.places, PLACE)
        names = PathTable(self.names)
        return Listing(
            file,
            self.title,
            names,
            places,
            tuple(self._labels),
            classes,
            tuple(self.problems),
            warnings,
            self.from_text,
        )


def cache_of(path: str, folder: str) -> Path:
    """Return the folder of the cache for what was found in a packed file."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
    return cache_folder() / folder / digest[:32]


def recalled(place: Path, path: str, key: Mapping[str, Any]) -> Listing | None:
    """Return the cached list of a packed file; None if there is none, or the file has changed since.

    Args:
        place: File of the cache.
        path: The packed file.
        key: What else the list depends on.
    """
    kept = load_arrays(place)
    try:
        facts = json.loads(kept["facts"].tobytes())
        if facts["key"] != _key(path, key) or kept["places"].dtype != PLACE:
            return None
        names = PathTable.restored(kept["names"], kept["ends"])
        return Listing(
            str(facts["file"]),
            path,
            names,
            kept["places"],
            tuple(facts["labels"]),
            None if facts["classes"] is None else tuple(facts["classes"]),
            tuple(Problem(name, reason) for name, reason in facts["problems"]),
            tuple(facts["warnings"]),
            int(facts["from_text"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def remember(place: Path, path: str, key: Mapping[str, Any], listing: Listing) -> None:
    """Save a list in the cache."""
    facts = {
        "key": _key(path, key),
        "file": listing.file,
        "labels": listing.labels,
        "classes": listing.classes,
        "problems": [(problem.path, problem.reason) for problem in listing.problems],
        "warnings": listing.warnings,
        "from_text": listing.from_text,
    }
    assert isinstance(listing.names, PathTable)
    names, ends = listing.names.arrays()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    save_arrays(place, {"facts": text, "names": names, "ends": ends, "places": listing.places})


def damaged(path: str, why: object) -> DataError:
    """Return the error for a packed file that can't be read."""
    return DataError(
        f"{clean_name(path)}: damaged: {clean(str(why), 200)}",
        hint="copy or download it again, or remove it",
    )


def _key(path: str, more: Mapping[str, Any]) -> list[Any]:
    return [_VERSION, *status_of(path), dict(more)]


# Finds the packed files of a set, and which of them are for training and for validation
# --------------------------------------------------------------------------------------

_DEPTH, _NAMED = 4, 8
"""Levels of folders that are searched, as a hub's cache has snapshots/HASH/CONFIG; folders that are named."""


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """The files of each split, in natural order. Files without a split in their names are for training."""

    train: list[str]
    val: list[str]
    test: list[str]
    others: list[str] = field(default_factory=list)
    """Files without a split in their names, where others have one."""


def find_packed(path: str, ending: str) -> PackedFiles | None:
    """Find the files of a set; None if there are none.

    The split of a file is the first word of its name that is one (`train-00000.tar`,
    `birds-validation-0.tar`), or the name of its folder.

    Args:
        path: A folder, or one such file.
        ending: How the names of the files end, such as `.tar`.

    Raises:
        DataError: A folder can't be listed, or several folders have sets of their own.
    """
    if os.path.isfile(path):
        return PackedFiles([path], [], []) if path.lower().endswith(ending) else None
    files = list(_files(path, ending, _DEPTH))
    if not files:
        return None
    _refuse_several(path, files)
    found: dict[str, list[str]] = {split: [] for split in (TRAIN, VAL, TEST, UNLABELLED, "")}
    for file in files:
        found[_split_of(path, file)].append(file)
    others = found[UNLABELLED] + (found[""] if found[TRAIN] else [])
    return PackedFiles(found[TRAIN] or found[""], found[VAL], found[TEST], others)


def _files(folder: str, ending: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: natural_key(entry.name))
    except NotADirectoryError:
        return
    except OSError as error:
        raise unreadable(folder, error) from error
    for entry in inside:
        name = entry.name.lower()
        if name.startswith("."):
            continue
        if name.endswith(ending) and leads_to(entry.is_file):
            yield entry.path
        elif depth and leads_to(entry.is_dir):
            yield from _files(entry.path, ending, depth - 1)


def _refuse_several(path: str, files: list[str]) -> None:
    """Refuse several folders of files: each is a set, or a version of one."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        folder, name = os.path.split(os.path.relpath(file, path))
        if folder_words(os.path.basename(folder)).split:
            folder, name = os.path.dirname(folder), os.path.join(os.path.basename(folder), name)
        folders[folder].append(name)
    if len(folders) > 1:
        inner = shell_word(os.path.join(path, next(filter(None, folders))))
        raise TwoReadingsError(
            f"{clean_name(path)}: {len(folders)} folders with sets of their own",
            {clean_name(folder or "."): some(names) for folder, names in islice(folders.items(), _NAMED)},
            hint=f"give --data one of them, as {inner}" + ", or move the others out of it" * ("" in folders),
        )


def _split_of(path: str, file: str) -> str:
    folder, name = os.path.split(os.path.relpath(file, path))
    return split_of_file(name) or folder_words(os.path.basename(folder)).split


# Joins the lists of packed files to the list of a set, in the order that a folder of the same images has
# -------------------------------------------------------------------------------------------------------

_NO_CLASS = -1
_CLASS_FILES = ("classes.txt", "classnames.txt")
_UNLABELLED = frozenset({"-1"})


@dataclass(slots=True)
class _Samples:
    """The samples of some files, as columns."""

    of_file: list[npt.NDArray[np.int32]] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    places: list[npt.NDArray[np.void]] = field(default_factory=list)
    labels: list[Rows] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Classes:
    """The classes of a set."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]
    """The number of each name."""
    declared: bool
    """Whether the set declares them, in their order: labels in decimal are then their numbers."""

    def number_of(self, label: str, *, numbered: bool) -> int:
        """Return the class of a label: the number of its name, or with `numbered` the number that it is."""
        is_number = label.isascii() and label.isdecimal()
        if numbered and is_number:
            return int(label) if len(label) < 10 and int(label) < len(self.names) else _NO_CLASS
        return self.numbers.get(clean_name(label), _NO_CLASS)


def join(
    path: str, splits: Sequence[Sequence[Listing]], kind: SampleKind, declared: tuple[str, ...] | None
) -> Found:
    """Join the lists of files: training first, by class and by name, as class folders are listed.

    Args:
        path: The set.
        splits: The lists of its training files, of those of validation, and of those of the test, which serve
            for validation if there are no others and they have labels.
        kind: Kind of the samples.
        declared: Names of the classes 0, 1, …; None: as the files declare them.

    Raises:
        DataError: There are no samples of this kind, fewer than two classes, or files disagree.
    """
    train, val, test = splits
    if not val and all(_is_labelled(each, kind) for each in test):
        val = test
    lists = [*train, *val]
    names = _class_names(path, lists, declared) if kind is SampleKind.CLASS else ("image",)
    numbers = {name: number for number, name in enumerate(names)}
    classes = _Classes(names, numbers, declared is not None)
    parts = [_Samples(), _Samples()]
    for number, listing in enumerate(lists):
        _add(parts[number >= len(train)], number, listing, kind, classes=classes)
    counts = [_sort(part) for part in parts]
    if not counts[0]:
        raise DataError(
            f"{clean_name(path)}: no usable training sample{_first_problem(parts)}",
            hint="check that it has the bytes of its images, not paths alone, and labels or masks",
        )
    of_file, rows, places, labels = (
        np.concatenate([array for part in parts for array in getattr(part, column)])
        for column in ("of_file", "rows", "places", "labels")
    )
    paths = PathTable(name for part in parts for name in part.names)
    files = tuple((listing.file, listing.title) for listing in lists)

    def table(at: str, size: str, suffix: str = "") -> PartTable:
        return PartTable(files, of_file, rows, places[at], places[size], names=paths, suffix=suffix)

    masked = kind is SampleKind.MASK
    return Found(
        images=table("at", "size"),
        train_rows=counts[0],
        classes=() if masked else names,
        labels=None if masked else labels,
        masks=table("mask_at", "mask_size", " (mask)") if masked else None,
        class_file=_beside(path, CLASS_FILE) if masked else None,
        unpaired=tuple(problem for part in parts for problem in part.problems),
        warnings=tuple(warning for listing in lists for warning in listing.warnings),
    )


def declared_classes(path: str) -> tuple[str, ...] | None:
    """Read the class file of a set, a name a line; None if it has none.

    Raises:
        DataError: It can't be read.
    """
    file = class_file(path)
    if file is None:
        return None
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{clean_name(str(file))}: {clean_name(str(error))}", hint="write the name of a class a line"
        ) from error
    return tuple(line.strip() for line in lines if line.strip())


def class_file(path: str) -> Path | None:
    """Return the class file of a set."""
    return next((found for name in _CLASS_FILES if (found := _beside(path, name))), None)


def _beside(path: str, name: str) -> Path | None:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    file = Path(folder) / name
    return file if file.is_file() else None


def _class_names(path: str, lists: Sequence[Listing], declared: tuple[str, ...] | None) -> tuple[str, ...]:
    in_files = {listing.classes: None for listing in lists if listing.classes is not None}
    if declared is None and len({frozenset(names) for names in in_files}) > 1:
        raise DataError(
            f"{clean_name(path)}: its files declare different classes", hint="give --data one set of files"
        )
    labels = {label for listing in lists for label in listing.labels}
    _refuse_captions(path, lists, labels)
    classes = declared or next(iter(in_files), None) or tuple(sorted(labels, key=natural_key))
    if len(classes) < 2:
        raise DataError(
            f"{clean_name(path)}: only one class: {clean_name(classes[0])}"
            if classes
            else f"{clean_name(path)}: no labels in .cls or .txt members, or as label or class in .json",
            hint="choose --model diffusion_unet for images alone, or data with two classes or more",
        )
    return tuple(_distinct(map(clean_name, classes)))


def _refuse_captions(path: str, lists: Sequence[Listing], labels: Collection[str]) -> None:
    """Refuse texts beside images if most images have one of their own: they describe them."""
    texts = sum(listing.from_text for listing in lists)
    if texts and 2 * len(labels) > texts:
        first = clean_name(next(text for listing in lists for text in listing.labels), 50)
        raise TwoReadingsError(
            f"{clean_name(path)}: {len(labels)} texts of {texts} images in .txt members",
            {
                "captions": f"each describes its image, as {first}",
                "classes": f"{len(labels)} classes, most with one image",
            },
            hint="choose --model diffusion_unet for images alone; write classes into .cls members",
        )


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield names, a repeated one with its count: metrics are by the names of classes."""
    seen = Counter[str]()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _add(
    part: _Samples,
    number: int,
    listing: Listing,
    kind: SampleKind,
    *,
    classes: _Classes,
) -> None:
    places = listing.places
    part.problems += listing.problems
    labels = np.zeros(len(places), np.int64)
    usable = np.ones(len(places), np.bool_)
    if kind is SampleKind.MASK:
        usable = places["mask_size"] > 0
    elif kind is SampleKind.CLASS:
        numbered = classes.declared or listing.classes is not None
        labels_of_file = _in_order(listing, classes)
        codes = [*(classes.number_of(label, numbered=numbered) for label in labels_of_file), _NO_CLASS]
        labels = np.array(codes, np.int64)[places["label"]]
        usable = labels != _NO_CLASS
    for row in np.flatnonzero(~usable).tolist():
        title = f"{listing.title}:{listing.names[row] or row}"
        part.problems.append(Problem(title, _fault(listing, row, kind, len(classes.names))))
    kept = np.flatnonzero(usable)
    part.of_file.append(np.full(len(kept), number, np.int32))
    part.rows.append(kept)
    part.places.append(places[kept])
    part.labels.append(labels[kept])
    part.names += [listing.names[row] for row in kept.tolist()]


def _in_order(listing: Listing, classes: _Classes) -> Sequence[str]:
    """Return the labels of a file as numbers of the set's classes, where it has them in another order."""
    own = listing.classes
    if classes.declared or own is None:
        return listing.labels
    names = tuple(map(clean_name, own))
    if names == classes.names or {*names} != {*classes.names}:
        return listing.labels
    number = {str(place): str(classes.numbers[name]) for place, name in enumerate(names)}
    return [number.get(label, label) for label in listing.labels]


def _sort(part: _Samples) -> int:
    """Sort samples by class, then by name, then as they are stored; return their number."""
    if not part.names:
        return 0
    labels = np.concatenate(part.labels).tolist()
    names = [name.replace("/", "\0") for name in part.names]  # folders are listed before longer names
    order = sorted(range(len(names)), key=lambda row: (labels[row], names[row]))
    for column in ("of_file", "rows", "places", "labels"):
        setattr(part, column, [np.concatenate(getattr(part, column))[order]])
    part.names = [part.names[row] for row in order]
    return len(order)


def _fault(listing: Listing, row: int, kind: SampleKind, classes: int) -> str:
    if kind is SampleKind.MASK:
        return "has no mask"
    code = int(listing.places["label"][row])
    if code == _NO_CLASS:
        return "has no label"
    return f"its label {clean_name(listing.labels[code], 50)} is none of the {classes} classes"


def _is_labelled(listing: Listing, kind: SampleKind) -> bool:
    if kind is SampleKind.MASK:
        return bool(listing.places["mask_size"].any())
    return kind is SampleKind.IMAGE or bool(set(listing.labels) - _UNLABELLED)


def _first_problem(parts: Sequence[_Samples]) -> str:
    problems = [problem for part in parts for problem in part.problems]
    return f": {clean_name(problems[0].path)} {problems[0].reason}" if problems else ""
