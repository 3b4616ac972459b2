"""Finds the training, validation, class, image and mask folders in a folder, and the images in them."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from mptui.data.formats.folders.folder_walk import OF_SYSTEM, leads_to, unreadable
from mptui.data.formats.folders.split_words import TEST, TRAIN, VAL, is_plain_split, words_with_glued
from mptui.errors import DataError, TwoReadingsError
from mptui.text import clean_name

IMAGE_NAMES = ("images", "imgs", "image", "img")
MASK_NAMES = ("masks", "mask", "labels", "label", "annotations", "annotation")

CLASS_FOLDERS = "DATA/train/cat/1.jpg and DATA/val/cat/2.jpg, or DATA/cat/1.jpg"
IMAGES_AND_MASKS = "DATA/images/1.jpg and DATA/masks/1.png, or both under DATA/train and DATA/val"


@dataclass(frozen=True, slots=True)
class Halves:
    """The folders of the splits; a folder without any serves for training itself."""

    train: str
    val: str | None = None
    test: str | None = None
    """Folder of the test half, which a run does not read."""

    @property
    def origin(self) -> str:
        """Where the split comes from, as a phrase; empty: one half is to be held out."""
        if self.val is None:
            return ""
        train, val = (clean_name(os.path.basename(at)) for at in (self.train, self.val))
        return f"folders {train} and {val}"


def check_folder(path: str) -> None:
    """Check that a path is a folder.

    Raises:
        DataError: The path does not exist, or is not a folder.
    """
    if not os.path.lexists(path):
        raise DataError(
            f"no such folder: {clean_name(path)}",
            hint="Check --data; relative paths start at the current folder.",
        )
    if not os.path.isdir(path):
        raise DataError(
            f"not a folder: {clean_name(path)}",
            hint="Unpack it if it is an archive, and give the folder to --data.",
        )


def find_halves(path: str, is_half: Callable[[str], bool]) -> Halves:
    """Find the folders of the splits by the words in their names; without any, the folder is for training.

    A `train` folder that `is_half` rejects is not a half, but e.g. a class of that name. A rejected `test`
    folder isn't either: e.g. the unlabelled images of a competition.

    Raises:
        DataError: The folder can't be listed, or two folders are of one split.
    """
    inside = subfolders(path)
    of_split = {split: _of_split(path, inside, split, is_half) for split in (TRAIN, VAL, TEST)}
    train, val, test = (None if at is None else _unwrapped(at) for at in of_split.values())
    if train is None or not is_half(train):
        return Halves(path)
    if val is None and test is not None and is_half(test):
        val, test = test, None
    return Halves(train, val, test)


def split_folders(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of folders that are a split, by split.

    A name counts that is nothing but words of a split (`train2017`, `training_set`), or that differs from
    another by its split alone: `seg_train` beside `seg_test`, or `traincrop` beside `valcrop`, but not the
    classes `bullet_train` and `car`.
    """
    words = {name: words_with_glued(name) for name in names}
    found: dict[str, list[str]] = {}
    for name, said in words.items():
        others = [each.rest for each in words.values() if each.split and each.split != said.split]
        if said.split and (said.exact or said.rest in others):
            found.setdefault(said.split, []).append(name)
    return found


def _of_split(path: str, inside: dict[str, str], split: str, is_half: Callable[[str], bool]) -> str | None:
    """Return the folder of a split: one that is nothing but its word before others."""
    names = split_folders(inside).get(split, [])
    plain = [name for name in names if is_plain_split(name)]
    chosen = [name for name in plain or names if is_half(inside[name])] or (plain or names)[:1]
    if len(chosen) > 1:
        first, second = map(clean_name, chosen[:2])
        raise TwoReadingsError(
            f"{clean_name(path)}: two folders of one split",
            {first: f"is {split}, without {second}", second: f"is {split}, without {first}"},
            hint="Move one of them out of it, or give --data LIST.csv with a column split.",
        )
    return inside[chosen[0]] if chosen else None


def _unwrapped(path: str) -> str:
    """Return the only folder in a folder of a split if it has the same name, as `seg_train/seg_train`."""
    inside = subfolders(path)
    return next(iter(inside.values())) if list(inside) == [os.path.basename(path)] else path


def has_subfolders(path: str) -> bool:
    """Whether a folder could be half of a set of class folders."""
    return bool(subfolders(path))


def subfolders(path: str) -> dict[str, str]:
    """Return the subfolders by name, in natural order ("2" before "10"), without hidden ones.

    Raises:
        DataError: The folder can't be listed.
    """
    names = (entry.name for entry in _entries(path) if leads_to(entry.is_dir))
    return {name: os.path.join(path, name) for name in sorted(names, key=natural_key)}


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value, and differs for different names."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (
        *((0, int(p), "") if p.isascii() and p.isdecimal() else (1, 0, p.casefold()) for p in parts),
        (-1, 0, name),
    )


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name not in OF_SYSTEM]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def contents(path: str) -> str:
    """List the first entries of a folder for a message."""
    names = sorted((clean_name(e.name) + "/" * leads_to(e.is_dir) for e in _entries(path)), key=natural_key)
    shown = ", ".join(islice(names, 8))
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "nothing"
