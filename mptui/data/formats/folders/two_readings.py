"""Refuses class folders that can be understood in two ways, with both and what decides."""

import os
import re
from collections.abc import Collection, Iterable, Mapping

from mptui.data.formats.folders.folder_walk import FolderFiles
from mptui.data.formats.folders.split_words import TRAIN, folder_words
from mptui.errors import TwoReadingsError
from mptui.text import clean_name, some

_PARTS = frozenset({"part", "parts", "batch", "chunk", "fold", "shard", "volume", "disk", "split", "zip"})
_AS_CLASSES = "add --set data.class_folders=outer if each folder is a class."


def refuse_two_readings(path: str, half: str, folders: Mapping[str, FolderFiles]) -> None:
    """Check that each folder of a half is a class, not another part of the set.

    Args:
        path: The set.
        half: The folder with the class folders; `path` itself if the set has no folders of splits.
        folders: The files of each folder, by its name.

    Raises:
        DataError: A folder can be a split, the masks, or a copy of the classes beside it; or its folders can
            be the classes.
    """
    filled = {name: files for name, files in folders.items() if files.direct or files.inner}
    for name, files in filled.items():
        others = [other for other in filled if other != name]
        if reading := _other_part(name, files, others, has_splits=half != path):
            raise TwoReadingsError(
                f"{clean_name(half)}: {clean_name(name)} can be a class, or another part of the set",
                {**reading, "a class": f"{len(filled)} classes: {some(list(filled))}"},
                hint=f"Move {clean_name(name)} out of it (splits are DATA/train/CLASS and DATA/val/CLASS), or"
                f" {_AS_CLASSES}",
            )
    _refuse_shared_folders(half, filled)
    _refuse_parts(half, list(filled))


def _other_part(
    name: str, files: FolderFiles, others: Collection[str], *, has_splits: bool
) -> dict[str, str]:
    """Return what else a folder can be; empty: it is a class."""
    if {"image", "mask"} <= {folder_words(inner).content for inner in files.inner}:
        return {"images and masks": f"it has a folder of each: {some(list(files.inner))}"}
    if files.inner and not files.direct and {*files.inner} <= {*others}:
        return {"a part": f"it has folders with the names of classes beside it: {some(list(files.inner))}"}
    if any(name.lower() in other.lower() for other in others):  # a pair of classes, as `mask` and `no_mask`
        return {}
    words = folder_words(name)
    if words.exact and words.content == "mask":
        return {"masks": "by its name, it has the masks of the images beside it"}
    if words.exact and words.split not in {"", TRAIN} and not has_splits:  # a train may be a vehicle
        return {"a split": f"by its name, it is for {words.split}, and the folders beside it for training"}
    return {}


def refuse_links_across(half: str, links: Iterable[str], counts: Mapping[str, int]) -> None:
    """Check that no class consists of links to images in other class folders for the most part.

    Args:
        half: The folder with the class folders.
        links: Links that are left out, as their targets are in the set.
        counts: The number of images of each class.

    Raises:
        DataError: One does.
    """
    real_half = os.path.realpath(half)
    across: dict[str, list[str]] = {}
    for link in filter(os.path.isfile, links):
        own, other = os.path.relpath(link, half), os.path.relpath(os.path.realpath(link), real_half)
        if (name := own.split(os.sep)[0]) in counts and name != other.split(os.sep)[0]:
            across.setdefault(name, []).append(other)
    for name, targets in across.items():
        if len(targets) > counts[name]:
            first, second = clean_name(name), clean_name(targets[0].split(os.sep)[0])
            raise TwoReadingsError(
                f"{clean_name(half)}: {first} has {len(targets)} links to images in {second}",
                {
                    f"of {first}": f"{second} holds the files of other classes, and is none",
                    f"of {second}": f"the links in {first} are none of its samples",
                },
                hint=f"Move {second} out of it if links say the classes, or remove the links.",
            )


def _refuse_parts(half: str, names: list[str]) -> None:
    """Refuse folders that differ by a number alone, and are called parts: `images_001`, `images_002`."""
    plain = {re.sub(r"[0-9]+", "", name) for name in names}
    words = (
        {*re.findall(r"[a-z]+", next(iter(plain)).lower())} if len(plain) == 1 and len(names) > 1 else set()
    )
    if words & _PARTS or any(folder_words(word).content == "image" for word in words):
        raise TwoReadingsError(
            f"{clean_name(half)}: its folders differ by a number alone, and can be parts or classes",
            {
                "parts of one set": f"{some(names)}: the classes are said elsewhere",
                "classes": f"{len(names)} classes: {some(names)}",
            },
            hint=f"Give --data a list of images and labels (LIST.csv), or {_AS_CLASSES}",
        )


def _refuse_shared_folders(half: str, filled: Mapping[str, FolderFiles]) -> None:
    """Refuse folders that all have the same folders in them, two or more."""
    if len(filled) < 2 or any(files.direct for files in filled.values()):
        return
    shared = set.intersection(*({*files.inner} for files in filled.values()))
    if len(shared) > 1:
        raise TwoReadingsError(
            f"{clean_name(half)}: each of its folders has the same folders, and both can be the classes",
            {
                "outer": f"{len(filled)} classes: {some(list(filled))}",
                "inner": f"{len(shared)} classes: {some(sorted(shared))}",
            },
            hint="Give --data one of its folders, or a list of images and labels (LIST.csv), if the inner are"
            " the classes; add --set data.class_folders=inner if each of the inner is a class of its own;"
            f" {_AS_CLASSES}",
        )
