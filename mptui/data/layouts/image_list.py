"""A list of images with a label or a mask for each: `--data LIST.csv`; its files found."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from mptui.data.dataset import PathTable
from mptui.data.decode import EXTENSIONS
from mptui.data.folder_format import Found
from mptui.data.layouts.class_folders import unknown_classes
from mptui.data.layouts.split_words import TEST, TRAIN, VAL, folder_words, split_of_file
from mptui.data.layouts.table import (
    ENDINGS,
    Columns,
    TextTable,
    find_columns,
    is_named_label,
    read_table,
    refuse_several_labels,
    unread,
    with_header,
)
from mptui.data.layouts.walk import natural_key
from mptui.data.masks import CLASS_FILE
from mptui.data.types import LeftOut, Problem
from mptui.errors import DataError, TwoReadingsError
from mptui.registry.names import SampleKind
from mptui.text import clean_name, shell_word, some

# A list of images with a label or a mask for each: `--data LIST.csv`
# -------------------------------------------------------------------

_FEW = 200
"""Number of rows by which a list is recognized."""
_ANSWERS = frozenset({"submission", "samplesubmission", "sample"})
"""Words in the names of lists that show what an answer to a competition looks like."""

_IMAGE_WORDS = ("image", "img", "photo", "jpeg", "jpg")
_MASK_WORDS = ("mask", "label", "annotation", "seg")


@dataclass(slots=True)
class _Half:
    """The rows of a list that are one half."""

    images: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    """The label, or the file of the mask, of each image."""

    def sorted(self) -> "_Half":
        """Return the rows by label and by name, as class folders are listed."""
        keys = [natural_key(label) for label in self.targets]
        order = sorted(range(len(keys)), key=lambda row: (keys[row], self.images[row]))
        return _Half([self.images[row] for row in order], [self.targets[row] for row in order])


def recognize_list(path: str) -> SampleKind | None:
    """Return the kind of the samples of a list; None if the path is none.

    Raises:
        ConfigError: A Parquet file, but pyarrow is not installed.
        DataError: It can't be read, or in more than one way.
    """
    if not path.lower().endswith(ENDINGS) or not os.path.isfile(path):
        return None
    table = with_header(read_table(path, _FEW))
    columns = find_columns(table)
    if columns is None:
        names = ", ".join(map(clean_name, table.header[:12]))
        raise DataError(
            f"{clean_name(path)}: none of its columns is called image: {names}",
            hint="name the columns in its first line: image, label or mask, and split if there is one",
        )
    return columns.kind


def find_in_list(path: str, kind: SampleKind, *_: object) -> Found:
    """List the samples of a list.

    Raises:
        DataError: It can't be read, or there are no usable samples.
    """
    forget_listings()
    table = with_header(read_table(path))
    columns = find_columns(table)
    assert columns is not None
    if kind is SampleKind.CLASS and columns.label is not None:
        refuse_several_labels(table, columns.label)
    rows = _Rows(table, columns, kind)
    train, val, test = (rows.halves[name].sorted() for name in ("train", "val", "test"))
    split = _phrase(table, columns, val, test) if val.images or test.images else ""
    if not val.images and all(test.targets):
        val, test = test, _Half()
    if not train.images:
        raise _nothing(table, columns, rows)
    classes = (
        sorted({*train.targets, *val.targets}, key=natural_key) if kind is SampleKind.CLASS else ["image"]
    )
    if len(classes) < 2 and kind is SampleKind.CLASS:
        raise DataError(
            f"{clean_name(path)}: only one class: {clean_name(classes[0])}",
            hint="choose --model diffusion_unet for images alone, or list two classes or more",
        )
    if unknown := sorted({*val.targets} - {*train.targets}) if kind is SampleKind.CLASS else []:
        raise unknown_classes(
            path, unknown, train.targets, "correct the column of the split, or of the label"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    masked = kind is SampleKind.MASK
    targets = [*train.targets, *val.targets]
    labels = [numbers[name] if kind is SampleKind.CLASS else 0 for name in targets]
    return Found(
        images=PathTable([*train.images, *val.images]),
        train_rows=len(train.images),
        classes=() if masked else tuple(map(clean_name, classes)),
        labels=None if masked else np.array(labels, np.int64),
        masks=PathTable(targets) if masked else None,
        class_file=_class_file(table, train) if masked else None,
        unpaired=tuple(rows.problems),
        warnings=tuple(_warnings(table, columns, rows)),
        split=split,
        test=tuple(test.images),
        left_out=tuple(rows.left_out()),
    )


def targets_in(folder: str, kind: SampleKind) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the lists in a folder that say the label, or the mask, of its images: by their first lines.

    A column counts as the label by its name alone, not because it is the only other one.

    Returns:
        The list, and the label or the file of the mask of each image.
    """
    for path, table, columns in _lists_in(folder):
        if columns.kind is not kind or not is_named_label(table, columns):
            continue
        try:
            halves = _Rows(table, columns, kind).halves.values()
        except DataError:  # its lines contradict each other
            continue
        pairs = (pair for half in halves for pair in zip(half.images, half.targets, strict=True))
        yield path, {image: target for image, target in pairs if target}


def _lists_in(folder: str) -> Iterator[tuple[str, TextTable, Columns]]:
    """Yield the lists in a folder that have labels or masks and whose images are there: their first lines."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(ENDINGS))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            table = with_header(read_table(path, _FEW))
            columns = find_columns(table)
            if columns is None or columns.kind is SampleKind.IMAGE:
                continue
            images = [row[columns.image] for row in table.rows]
            finder = FileFinder(path, images, _IMAGE_WORDS)
            is_there = any(finder.find(image) for image in images)
        except Exception:  # noqa: BLE001, S112 - any table may lie there; it is only offered
            continue
        if is_there:
            yield path, table, columns


@contextmanager
def offering(folder: str) -> Iterator[None]:
    """Let a refusal of a folder offer a list that is in it: a way to read what its layout doesn't say."""
    try:
        yield
    except DataError as error:
        first = next((path for place in _places(folder) for path in _offered(place)), None)
        if first is None:
            raise
        offer = f"its labels are in a list: --data {shell_word(first)}"
        if not isinstance(error, TwoReadingsError):
            error.hint = offer
        elif shell_word(first) not in error.hint:
            error.hint = f"{error.hint} {offer}"
        raise


def _places(folder: str) -> Iterator[str]:
    yield folder
    try:
        with os.scandir(folder) as entries:
            yield from sorted(entry.path for entry in islice(entries, _FEW) if entry.is_dir())
    except OSError:
        return


def _offered(folder: str) -> Iterator[str]:
    """Yield the lists in a folder that a run can learn from: no examples of answers, no test halves."""
    for path, table, columns in _lists_in(folder):
        words = re.findall(r"[a-z]+", os.path.basename(path).lower())
        column = columns.label if columns.mask is None else columns.mask
        targets = {row[column] for row in table.rows} if column is not None else {"one-hot", "columns"}
        is_of_test = split_of_file(words[0] if words else "") == TEST or not _ANSWERS.isdisjoint(words)
        if len(targets) > 1 and not is_of_test:
            yield path


class _Rows:
    """The rows of a table, by split, and those that are left out."""

    def __init__(self, table: TextTable, columns: Columns, kind: SampleKind) -> None:
        self._table = table
        self._columns = columns
        self._kind = kind
        self.halves = {name: _Half() for name in ("train", "val", "test")}
        self.problems: list[Problem] = []
        self._again: list[str] = []
        self._seen: dict[str, tuple[int, str, str]] = {}
        self._images = FileFinder(table.path, [row[columns.image] for row in table.rows], _IMAGE_WORDS)
        names = [] if columns.mask is None else [row[columns.mask] for row in table.rows]
        self._masks = FileFinder(table.path, names, _MASK_WORDS)
        files = [self._images.find(name) if (name := row[columns.image]) else None for row in table.rows]
        self.root = self._images.root
        """The folder from which the images are found."""
        self._by_folders = _splits_of_folders(files, self.root) if columns.split is None else {}
        for number, (row, image) in enumerate(zip(table.rows, files, strict=True)):
            self._add(number, row, image)

    def left_out(self) -> Iterator[LeftOut]:
        """Yield the rows that are left out without being a fault of the set."""
        if self._again:
            yield LeftOut("is listed again", tuple(self._again))

    def _add(self, number: int, row: list[str], image: str | None) -> None:
        split = self._split(number, row, image)
        if image is None:
            self.problems.append(
                Problem(row[self._columns.image] or self._table.name(number), "no such file")
            )
            return
        target, fault = self._target(number, row, image)
        if fault and split != "test":
            self.problems.append(Problem(image, fault))
            return
        if (known := self._seen.get(image)) is not None:
            if known[1:] != (split, target):
                first, second = self._table.name(known[0]), self._table.name(number)
                raise TwoReadingsError(
                    f"{first} and {second} say different things of {clean_name(image)}",
                    {first: " ".join(map(clean_name, known[1:])), second: clean_name(f"{split} {target}")},
                    hint="remove one of the lines: an image has one label and one split",
                )
            self._again.append(image)
            return
        self._seen[image] = number, split, target
        self.halves[split].images.append(image)
        self.halves[split].targets.append(target)

    def _split(self, number: int, row: list[str], image: str | None) -> str:
        if self._columns.split is None:
            return self._by_folders.get(os.path.dirname(image or ""), TRAIN)
        word = row[self._columns.split].strip().lower()
        if word not in self._columns.split_of:
            raise DataError(
                f"{self._table.name(number)}: its split is {row[self._columns.split]!r}",
                hint="write train, val or test in the column of the split, or remove the column",
            )
        return self._columns.split_of[word]

    def _target(self, number: int, row: list[str], image: str) -> tuple[str, str]:
        """Return the label, or the file of the mask, of an image, and what is wrong with it."""
        columns = self._columns
        if self._kind is SampleKind.IMAGE:
            return "image", ""
        if columns.one_hot:
            return next(self._table.header[each] for each in columns.one_hot if float(row[each]) == 1), ""
        if columns.mask is None:
            assert columns.label is not None
            return (label := self._label(number, row[columns.label])), "" if label else "has no label"
        mask = self._masks.find(row[columns.mask]) if row[columns.mask] else None
        if mask == image:
            raise DataError(
                f"{self._table.name(number)}: image and mask are one file", hint="list the file of the mask"
            )
        return mask or "", "" if mask else f"has no mask {row[columns.mask]}".rstrip()

    def _label(self, number: int, text: str) -> str:
        """Return a label, a whole number without its fraction: pandas writes 3 as 3.0 beside a gap."""
        try:
            value = float(text)
        except ValueError:
            return text
        if value != value:
            return ""
        if value.is_integer():
            return str(int(value)) if "." in text else text
        raise DataError(
            f"{self._table.name(number)}: its label is the fraction {text}, not a class",
            hint="list the class of each image: its name, or its number",
        )


def _splits_of_folders(files: Iterable[str | None], root: str) -> dict[str, str]:
    """Return the split of each folder by the words in its path; empty: some have none, or all the same."""
    folders = {os.path.dirname(file) for file in files if file is not None}
    splits = {}
    for folder in folders:
        words = map(folder_words, os.path.relpath(folder, root).split(os.sep))
        said = {each.split for each in words if each.exact} & {TRAIN, VAL, TEST}
        splits[folder] = said.pop() if len(said) == 1 else ""
    found = {*splits.values()}
    return splits if {TRAIN} < found and "" not in found else {}


def _phrase(table: TextTable, columns: Columns, val: _Half, test: _Half) -> str:
    other = "val" if val.images else "test"
    if columns.split is None:
        return f"folders of the list's images: train and {other}"
    return f"column {clean_name(table.header[columns.split])} of the list: train and {other}"


def _warnings(table: TextTable, columns: Columns, rows: _Rows) -> Iterator[str]:
    if unused := list(unread(table, columns)):
        yield f"columns of the list that are not read: {some(unused)}"
    if rows.root != os.path.dirname(os.path.abspath(table.path)):
        yield f"the images of the list are in folders beside its own, in {clean_name(rows.root)}"


def _nothing(table: TextTable, columns: Columns, rows: _Rows) -> DataError:
    what = "no usable image for training"
    if rows.problems:
        what += f": {clean_name(rows.problems[0].path)}: {rows.problems[0].reason}"
    return DataError(
        f"{clean_name(table.path)}: {what}",
        hint=f"write into the column {clean_name(table.header[columns.image])} where each image is, from the"
        " folder of the list: images/1.jpg",
    )


def _class_file(table: TextTable, train: _Half) -> Path | None:
    """Return the file of the masks' classes: beside the list, or in the folder of all images and masks."""
    common = os.path.commonpath([train.images[0], train.images[-1], *train.targets[:1], *train.targets[-1:]])
    folders: Sequence[str] = (os.path.dirname(table.path), common)
    return next((file for each in folders if (file := Path(each) / CLASS_FILE).is_file()), None)


# Finds the files of a list, whose names may lack their folder or their ending
# ----------------------------------------------------------------------------

_TRIED = 200
"""Number of names by which the folder of a list's files is chosen."""
_ABOVE = 0.9
"""Share of the names that folders beside that of the list must have: they may be another set's."""


class FileFinder:
    """Finds files by the names in a column.

    Args:
        path: The list.
        names: The names in the column.
        words: Words in the name of the folder that may hold the files.

    Raises:
        DataError: Two folders hold files of these names.
    """

    def __init__(self, path: str, names: Sequence[str], words: Sequence[str]) -> None:
        self._list = path
        self._words = words
        self.root = os.path.dirname(os.path.abspath(path))
        """The folder from which the files are looked for."""
        self._folders = [self.root]
        tried = [name for name in islice(names, _TRIED) if name]
        if any(_found(self.root, name) for name in tried):
            return
        if found := self._elsewhere([*_folders_inside(self.root)], tried):
            self._folders = found
            return
        above = os.path.dirname(self.root)
        found = self._elsewhere(_visible(above), tried) if not _visible(self.root) else []
        if sum(any(_found(folder, name) for folder in found) for name in tried) >= _ABOVE * max(
            len(tried), 1
        ):
            self.root = above
            self._folders = found

    def find(self, name: str) -> str | None:
        """Return the file of a name; None if there is none.

        Raises:
            DataError: Two files have the name, which lacks an ending, or two folders have it.
        """
        files = [file for folder in self._folders if (file := _found(folder, name)) is not None]
        if len(files) > 1:
            raise self._in_two(*map(os.path.dirname, files[:2]))
        return files[0] if files else None

    def _elsewhere(self, folders: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the folders in which the names are: that with most, or several that share them."""
        has = {folder: {name for name in names if _found(folder, name) is not None} for folder in folders}
        has = {folder: found for folder, found in has.items() if found}
        if len(has) < 2:
            return [*has]
        if sum(map(len, has.values())) == len(set.union(*has.values())):  # parts of the set
            return [*has]
        most = max(map(len, has.values()))
        best = [folder for folder, found in has.items() if len(found) == most]
        stem = os.path.splitext(os.path.basename(self._list))[0].lower()
        for words in (re.findall(r"[a-z]+", stem), self._words):
            named = [each for each in best if any(word in _last(each).lower() for word in words)]
            best = named if len(best) > 1 and len(named) == 1 else best
        if len(best) > 1:
            raise self._in_two(best[0], best[1])
        return best

    def _in_two(self, first: str, second: str) -> TwoReadingsError:
        return TwoReadingsError(
            f"{clean_name(self._list)}: the files of its names are in two folders",
            {clean_name(folder): "has files of these names" for folder in (first, second)},
            hint="write the folder into the list: images/1.jpg",
        )


def _found(folder: str, name: str) -> str | None:
    if "\\" in name and "/" not in name:
        name = name.replace("\\", "/")
    path = os.path.normpath(os.path.join(folder, name))
    inside, last = os.path.split(path)
    listed, stems = _listing(inside)
    if last in listed:
        return path
    plain = _composed(last)
    files = [each for each in stems.get(plain, ()) if os.path.splitext(each)[1].lower() in EXTENSIONS]
    if not files and plain in stems:  # the same name in other Unicode characters
        files = [each for each in stems[plain] if _composed(each) == plain]
    if len(files) > 1:
        raise TwoReadingsError(
            f"two files fit {clean_name(name)}",
            {clean_name(file): f"in {clean_name(inside)}" for file in files[:2]},
            hint="write the names in the list with their endings",
        )
    return os.path.join(inside, files[0]) if files else None


@lru_cache(maxsize=4096)
def _listing(folder: str) -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return the names in a folder, and those of each stem and of each name."""
    stems: defaultdict[str, list[str]] = defaultdict(list)
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset(), {}
    for name in names:
        for key in {_composed(name), _composed(os.path.splitext(name)[0])}:
            stems[key].append(name)
    return frozenset(names), dict(stems)


def forget_listings() -> None:
    """Read folders again, which may have changed."""
    _listing.cache_clear()


def _folders_inside(folder: str) -> Iterator[str]:
    """Yield the folders in a folder, and those in them, without hidden ones."""
    for inside in _visible(folder):
        yield inside
        yield from _visible(inside)


def _visible(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(each.path for each in entries if each.name[0] != "." and each.is_dir())
    except OSError:
        return []


def _last(folder: str) -> str:
    return os.path.basename(folder)


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
