"""Lists the samples of class folders, and of images alone, without decoding them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np

from mptui.config.schema import DataConfig
from mptui.data.dataset import PathTable
from mptui.data.folder_format import Found
from mptui.data.layouts.pairs import MASK_WORDS, masks_by_name
from mptui.data.layouts.readings import refuse_links_across, refuse_two_readings
from mptui.data.layouts.split_words import folder_words, same_text
from mptui.data.layouts.walk import (
    CLASS_FOLDERS,
    LINKED_TWICE,
    WRITTEN,
    FolderFiles,
    FolderWalk,
    SplitFolders,
    check_folder,
    find_splits,
    has_images,
    has_subfolders,
    natural_key,
    split_folders,
    subfolders,
    walk_images,
)
from mptui.data.types import Problem
from mptui.errors import DataError, TwoReadingsError
from mptui.text import clean_name, some

_OUTSIDE = "lies beside the class folders, in none of them"
BESIDE_SPLITS = "lies beside the folders of the splits"
_STRAY = 2
"""Images without a class that are left out without counting as samples that can't be used."""


@dataclass(frozen=True, slots=True)
class _Classes:
    """The images of each class of one half, by the name of the class."""

    tables: dict[str, PathTable]

    @property
    def filled(self) -> dict[str, PathTable]:
        return {name: table for name, table in self.tables.items() if len(table)}


def find_classes(path: str, data: DataConfig | None = None) -> Found:
    """List class folders, or a training and a validation folder of them.

    Raises:
        DataError: There are fewer than two classes, validation has classes that training lacks, or the names
            of the folders can be understood in two ways.
    """
    check_folder(path)
    halves = class_splits(path)
    walk = FolderWalk(path)
    listed = {
        at: {name: walk.images(folder) for name, folder in subfolders(at).items()}
        for at in (halves.train, halves.val)
        if at is not None
    }
    test = PathTable(()) if halves.test is None else walk.joined(walk.images(halves.test))
    setting = "auto" if data is None else data.class_folders
    inner = _by_inner_folders(path, listed.values(), setting)
    train = _classes_of(walk, halves.train, listed[halves.train], inner=inner)
    val = None if halves.val is None else _classes_of(walk, halves.val, listed[halves.val], inner=inner)
    walk.leave_rest(_OUTSIDE if halves.train == path else BESIDE_SPLITS)
    strays = _strays(walk)
    names = tuple(train.filled)
    counts = {name: len(table) for name, table in train.tables.items()}
    refuse_links_across(halves.train, walk.left[LINKED_TWICE], counts)
    _check_classes(path, halves, train, val)
    if setting == "auto" and not inner:
        refuse_two_readings(path, halves.train, listed[halves.train])
    of_name = {same_text(name): number for number, name in enumerate(names)}
    val_tables = {} if val is None else {of_name[same_text(name)]: each for name, each in val.filled.items()}
    warnings = [*_warnings(walk, train, names, val_tables), *walk.warnings()]
    tables = [*train.filled.values(), *(val_tables[number] for number in sorted(val_tables))]
    return Found(
        images=PathTable.chained(tables),
        train_rows=sum(map(len, train.filled.values())),
        classes=tuple(clean_name(name) for name in names),
        labels=np.repeat(
            np.array([*range(len(names)), *sorted(val_tables)], np.int64), [len(table) for table in tables]
        ),
        unpaired=strays,
        warnings=tuple(warnings),
        split=halves.origin,
        test=test,
        left_out=walk.left_out(),
    )


def find_images(path: str) -> Found:
    """List all images in a folder, or in a training and a validation folder, as one class.

    Raises:
        DataError: There are none.
    """
    check_folder(path)
    halves = find_splits(path, has_images)
    walk = FolderWalk(path)
    folders = [at for at in (halves.train, halves.val, halves.test) if at is not None]
    listed = [walk.images(at) for at in folders]
    joined = zip(folders, [walk.joined(files) for files in listed], strict=True)
    tables = [_photographs(walk, at, table) for at, table in joined]
    train, val, test = (
        PathTable(()) if at is None else tables[folders.index(at)]
        for at in (halves.train, halves.val, halves.test)
    )
    walk.leave_rest(BESIDE_SPLITS)
    if not len(train):
        raise DataError(
            f"{clean_name(path)}: holds no images", hint="give --data the folder that has them, at any depth"
        )
    return Found(
        images=PathTable.chained((train, val)),
        train_rows=len(train),
        classes=("image",),
        labels=np.zeros(len(train) + len(val), np.int64),
        warnings=tuple(walk.warnings()),
        split=halves.origin,
        test=test,
        left_out=walk.left_out(),
    )


def class_splits(path: str) -> SplitFolders:
    """Find the folders of the splits, or the only folder of images, if that has the class folders.

    Raises:
        DataError: A folder can't be listed, or two folders are of one split.
    """
    halves = find_splits(path, has_subfolders)
    if halves.train != path or halves.val is not None:
        return halves
    inside = {name: at for name, at in subfolders(path).items() if has_images(at)}
    said = [(words.exact, words.content, words.split) for words in map(folder_words, inside)]
    if said == [(True, "image", "")]:
        return find_splits(next(iter(inside.values())), has_subfolders)
    return halves


def names_are_classes(path: str) -> bool:
    """Whether the names of the folders in a folder can be those of classes, not of splits or of masks."""
    inside = subfolders(path)
    splits = split_folders(inside).values()
    if sum(any(has_images(inside[name]) for name in names) for names in splits) > 1:
        return False
    filled = (name for name, at in inside.items() if has_images(at))
    first = list(islice(filled, 2))
    return len(first) > 1 or any(not folder_words(name).exact for name in first)


def first_images(path: str, folders: int, each: int) -> Iterator[str]:
    """Yield the first `each` training images of the first class folders, without listing the others."""
    for folder in islice(subfolders(class_splits(path).train).values(), folders):
        yield from islice(walk_images(folder), each)


def count_images(path: str, most: int) -> tuple[int, bool]:
    """Count up to `most` training images, and say whether validation has a folder of its own."""
    halves = class_splits(path)
    images = (image for folder in subfolders(halves.train).values() for image in walk_images(folder))
    return sum(1 for _ in islice(images, most)), halves.val is not None


def _photographs(walk: FolderWalk, folder: str, table: PathTable) -> PathTable:
    """Return the images of a folder, without second links to one, and without masks by their names."""
    table = walk.without_second_links(table)
    masks = masks_by_name(folder, table) if table.mentions(MASK_WORDS) else {}
    for mask, reason in masks.items():
        walk.left[reason].append(mask)
    return PathTable(path for path in table if path not in masks) if masks else table


def _classes_of(walk: FolderWalk, half: str, listed: dict[str, FolderFiles], *, inner: bool) -> _Classes:
    tables = {name: walk.joined(files) for name, files in listed.items()}
    tables = {name: _photographs(walk, os.path.join(half, name), table) for name, table in tables.items()}
    if not inner:
        return _Classes(tables)
    found: dict[str, list[str]] = {}
    for folder, files in groupby(
        (path for table in tables.values() for path in table),
        os.path.dirname,
    ):
        found.setdefault(os.path.relpath(folder, half), []).extend(files)
    return _Classes({name: PathTable(found[name]) for name in sorted(found, key=natural_key)})


def _by_inner_folders(path: str, halves: Iterable[dict[str, FolderFiles]], setting: str) -> bool:
    """Whether the classes are the innermost folders, as `a/airfield`, not the outer ones.

    Raises:
        DataError: Both readings explain the names.
    """
    if setting != "auto":
        return setting == "inner"
    for half in halves:
        nested = [(name, files) for name, files in half.items() if files.inner and not files.direct]
        if len(nested) < 2 or any(files.direct for files in half.values()):
            continue  # they are one level
        shared = Counter(inner for _, files in nested for inner in files.inner)
        if max(shared.values()) > 1 or len(shared) == len(nested):
            continue
        if all(
            len(name) == 1 and all(each.startswith(name) for each in files.inner) for name, files in nested
        ):
            return True  # an index by the first letter, as Places365 has it
        outer, files = nested[0]
        first = clean_name(next(iter(files.inner)))
        raise TwoReadingsError(
            f"{clean_name(path)}: the class folders have folders, and both can be the classes",
            {
                "outer": f"{len(nested)} classes, the first is {clean_name(outer)}",
                "inner": f"{len(shared)} classes, the first is {clean_name(outer)}/{first}",
            },
            hint="choose with --set data.class_folders=outer or --set data.class_folders=inner",
        )
    return False


def _strays(walk: FolderWalk) -> tuple[Problem, ...]:
    """Return images beside the class folders as samples that can't be used, unless they are very few."""
    files = walk.left.get(_OUTSIDE, [])
    if len(files) <= _STRAY:
        return ()
    del walk.left[_OUTSIDE]
    return tuple(Problem(file, _OUTSIDE) for file in sorted(files, key=natural_key))


def _warnings(
    walk: FolderWalk, train: _Classes, names: Sequence[str], val: dict[int, PathTable]
) -> list[str]:
    warnings = []
    written = "\0".join(walk.left.get(WRITTEN, ()))
    empty = [name for name, files in train.tables.items() if not len(files)]
    if empty := [name for name in empty if f"{os.sep}{name}{os.sep}" not in written]:
        warnings.append(f"class folders without images, left out: {some(empty)}")
    if val and (missing := [name for number, name in enumerate(names) if number not in val]):
        warnings.append(f"classes without validation images: {some(missing)}")
    return warnings


def _check_classes(path: str, halves: SplitFolders, train: _Classes, val: _Classes | None) -> None:
    if val is not None and not val.filled:
        raise DataError(
            f"{clean_name(halves.val or path)}: no class folders with images",
            hint="put the validation images there, one folder per class, or remove the folder",
        )
    names = list(train.filled)
    _refuse_splits_as_classes(path, names)
    if len(names) < 2:
        what = (
            f"only one class folder with images: {clean_name(names[0])}"
            if names
            else "no class folders with images"
        )
        within = os.path.join(halves.train, names[0]) if names else ""
        inside = f", as {clean_name(within)}" if within and has_subfolders(within) else ""
        raise DataError(
            f"{clean_name(path)}: {what}\n  layout: {CLASS_FOLDERS}",
            hint=f"give --data the folder whose subfolders are the classes{inside}",
        )
    known = Counter(map(same_text, names))
    if twice := [name for name, count in known.items() if count > 1]:
        raise DataError(
            f"{clean_name(path)}: two class folders have one name in two spellings: {some(twice)}",
            hint="join them: the characters look alike, but are stored in two ways",
        )
    if val is not None and (unknown := [name for name in val.filled if same_text(name) not in known]):
        raise unknown_classes(path, unknown, names, "give both the same class folders")


def unknown_classes(path: str, unknown: Sequence[str], names: Iterable[str], hint: str) -> DataError:
    """Return the error for classes of validation that training lacks; it says if capitals alone differ.

    Args:
        path: The set.
        unknown: These classes.
        names: The classes of training.
        hint: What to do otherwise.
    """
    text = f"{clean_name(path)}: validation has classes that training lacks: {some(unknown)}"
    of_folded = {same_text(name).casefold(): name for name in names}
    by_case = [each for name in unknown if (each := of_folded.get(same_text(name).casefold())) is not None]
    if not by_case:
        return DataError(text, hint=hint)
    return DataError(
        f"{text}\n  classes of training that differ in capitals alone: {some(by_case)}",
        hint="write the names of classes with the same capitals in both",
    )


def _refuse_splits_as_classes(path: str, names: list[str]) -> None:
    splits = split_folders(names)
    if len(splits) > 1:
        first, second = (clean_name(each[0]) for each in list(splits.values())[:2])
        raise TwoReadingsError(
            f"{clean_name(path)}: {first} and {second} can be splits or classes",
            {
                "splits": f"their images have no class folders, as {first}/CLASS/1.jpg",
                "classes": f"{len(names)} classes: {some(names)}",
            },
            hint="sort the images into class folders, give --data a list of images and labels"
            " (LIST.csv), or rename the folders if they are classes",
        )
