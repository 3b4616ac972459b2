"""Splits a set by lists of its images that lie in it, as `meta/train.txt` and `meta/test.txt`.

A list is a text file with a word of a split in its name, and the name of an image in each line: with or
without its folder and its ending, and with anything after it. VOC's lists are read by `pair_folders`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mptui.data.address import joined_files
from mptui.data.dataset import PathTable
from mptui.data.decode import EXTENSIONS
from mptui.data.folder_format import Found
from mptui.data.layouts.split_words import TEST, TRAIN, VAL, is_plain_split, same_text, split_of_file
from mptui.data.layouts.walk import NOT_AN_IMAGE, not_images
from mptui.data.types import LeftOut
from mptui.errors import DataError, TwoReadingsError
from mptui.io.files import read_regular
from mptui.text import clean_name, some

_ENDINGS = (".txt", ".csv", ".lst", ".tsv")
_MOST_LISTS, _MOST_BYTES, _TRIED = 64, 1 << 28, 50
_NAMED = 0.9
"""Share of the lines of a list that name an image, and of the images that are in a list."""
_UNLISTED = "is in none of the lists of splits"
_OR_A_LIST = "or give --data LIST.csv with a column split"

Rows = frozenset[int]


@dataclass(frozen=True, slots=True)
class _List:
    path: str
    rows: Rows


def split_by_lists(path: str, found: Found) -> Found:
    """Return a set without a split with that of lists in it; itself if there are none.

    Raises:
        DataError: Lists of one split differ, an image is in lists of two splits, or many are in none.
    """
    is_split = found.split or found.train_rows < len(found.images)
    if is_split or not os.path.isdir(path):
        return found
    files = list(_files_of_splits(found))
    lists = _chosen(path, _lists(found, files)) if files else {}
    if TRAIN not in lists or len(lists) < 2:
        return replace(found, warnings=(*found.warnings, _unread(path, files))) if files else found
    _check(path, lists, len(found.images))
    return _reordered(found, lists)


def _files_of_splits(found: Found) -> Iterator[str]:
    """Yield the files that are left out and have a word of a split in their names."""
    for file in (file for left in found.left_out if left.reason == NOT_AN_IMAGE for file in left.files):
        if file.lower().endswith(_ENDINGS) and split_of_file(Path(file).stem) in (TRAIN, VAL, TEST):
            yield file


def _unread(path: str, files: Sequence[str]) -> str:
    names = some([os.path.relpath(file, path) for file in files])
    return f"not read: {names}; if they say the split, give --data LIST.csv with a column split"


def _lists(found: Found, files: Sequence[str]) -> Mapping[str, list[_List]]:
    """Return the files that are lists of images, by their split."""
    lists: defaultdict[str, list[_List]] = defaultdict(list)
    finder = _Finder(found.images)
    for file in sorted(files)[:_MOST_LISTS]:
        if rows := _rows_of(file, finder):
            lists[split_of_file(Path(file).stem)].append(_List(file, rows))
    return lists


class _Finder:
    """Finds the rows of images by their names."""

    def __init__(self, images: Sequence[str]) -> None:
        self._images = images
        self._by_stem: defaultdict[str, list[int]] = defaultdict(list)
        for row, image in enumerate(images):
            self._by_stem[same_text(Path(image).stem)].append(row)

    def row_of(self, line: str) -> int | None:
        """Return the row of the only image that a line names; None: it names none."""
        for name in (line.strip(), *islice(re.split(r"[\s,;]+", line), 3)):
            plain = same_text(name.strip("\"'/").removeprefix("./").replace("\\", "/"))
            stem, ending = os.path.splitext(plain)
            stem = stem if ending.lower() in EXTENSIONS else plain
            rows = self._by_stem.get(stem.rpartition("/")[2], [])
            if "/" in stem:
                rows = [row for row in rows if self._stem(row).endswith(f"/{stem}")]
            if len(rows) == 1:
                return rows[0]
        return None

    def _stem(self, row: int) -> str:
        return same_text(os.path.splitext(self._images[row])[0])


def _rows_of(file: str, finder: _Finder) -> Rows:
    """Return the rows of the images in a list; empty: it is no list of images."""
    try:
        lines = read_regular(file, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, ValueError):
        return frozenset()
    lines = [line for line in lines if line.strip()]
    first = [finder.row_of(line) for line in lines[:_TRIED]]
    if sum(row is not None for row in first) < _NAMED * len(first) - 1:  # one may be a line of names
        return frozenset()
    rows = (*first, *map(finder.row_of, lines[_TRIED:]))
    return frozenset(row for row in rows if row is not None)


def _chosen(path: str, lists: Mapping[str, list[_List]]) -> dict[str, _List]:
    """Return the list of each split: that which is called nothing but its word before others.

    Raises:
        DataError: Several can be meant.
    """
    chosen = {}
    for split, each in lists.items():
        plain = [one for one in each if is_plain_split(Path(one.path).stem)] or each
        if len({one.rows for one in plain}) > 1:
            raise _refused(
                path,
                f"{len(plain)} lists of one split differ: {some(_names(path, plain))}",
                "Move all of them but one of each split out of it",
            )
        chosen[split] = plain[0]
    return chosen


def _check(path: str, lists: Mapping[str, _List], images: int) -> None:
    counts = ", ".join(f"{len(each.rows):,} in {name}" for each, name in _named(path, lists))
    listed = frozenset[int]().union(*(each.rows for each in lists.values()))
    if len(listed) < sum(len(each.rows) for each in lists.values()):
        what = f"lists of two splits have the same images: {counts}"
        raise _refused(path, what, "Correct them, or move them out of it")
    if len(listed) < _NAMED * images:
        raise TwoReadingsError(
            f"{clean_name(path)}: its lists of splits leave out {images - len(listed):,} of {images:,}"
            " images",
            {"by the lists": counts, "without": "a share of all is held out by the seed"},
            hint=f"complete the lists, or move them out of it, {_OR_A_LIST}",
        )


def _refused(path: str, what: str, remedy: str) -> DataError:
    return DataError(f"{clean_name(path)}: {what}", hint=f"{remedy}, {_OR_A_LIST}")


def _named(path: str, lists: Mapping[str, _List]) -> Iterator[tuple[_List, str]]:
    yield from zip(lists.values(), _names(path, lists.values()), strict=True)


def _names(path: str, lists: Iterable[_List]) -> list[str]:
    return [os.path.relpath(each.path, path) for each in lists]


def _reordered(found: Found, lists: Mapping[str, _List]) -> Found:
    """Return a set with the rows of training first, then those of validation, without the others."""
    val_split = VAL if VAL in lists else TEST
    train, val = (sorted(lists[split].rows) for split in (TRAIN, val_split))
    test = sorted(lists[TEST].rows) if val_split is VAL and TEST in lists else []
    used = {*train, *val, *test}
    rest = [row for row in range(len(found.images)) if row not in used]
    rows = [*train, *val]
    read = {each.path for each in lists.values()}
    left_out, warnings = [], list(found.warnings)
    for left in found.left_out:
        files = [file for file in left.files if file not in read]
        if len(files) < len(left.files):
            warnings = [text for text in warnings if text != not_images(left.files)]
            warnings += [not_images(files)] if files else []
        if files:
            left_out.append(LeftOut(left.reason, PathTable(files)))
    if rest:
        left_out.append(LeftOut(_UNLISTED, PathTable(_files(found, rest))))
        warnings.append(f"{len(rest):,} images are in none of the lists of splits, and left out")
    names = [os.path.basename(lists[split].path) for split in (TRAIN, val_split)]
    return replace(
        found,
        images=PathTable(found.images[row] for row in rows),
        masks=None if found.masks is None else PathTable(found.masks[row] for row in rows),
        labels=None if found.labels is None else found.labels[rows],
        train_rows=len(train),
        split=f"lists {' and '.join(map(clean_name, names))}",
        test=PathTable([*found.test, *_files(found, test)]),
        left_out=tuple(left_out),
        warnings=tuple(warnings),
    )


def _files(found: Found, rows: Sequence[int]) -> Iterator[str]:
    """Yield the images of some rows, and their masks."""
    yield from (found.images[row] for row in rows)
    if found.masks is not None:
        yield from (file for row in rows for file in joined_files(found.masks[row]))
