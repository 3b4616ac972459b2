"""Refuses class folders that can be understood in two ways, with both and what decides."""

from collections.abc import Collection, Mapping

from mptui.data.formats.folders.folder_walk import FolderFiles
from mptui.data.formats.folders.split_words import TRAIN, folder_words
from mptui.errors import DataError
from mptui.text import clean_name, some

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
        if (reading := _other_part(name, files, others, has_splits=half != path)) is not None:
            raise DataError(
                f"{clean_name(half)}: {clean_name(name)} can be a class, or another part of the set:\n"
                f"  {reading}\n  a class: {len(filled)} classes: {some(list(filled))}",
                hint=f"Move {clean_name(name)} out of it (splits are DATA/train/CLASS and DATA/val/CLASS), or"
                f" {_AS_CLASSES}",
            )
    _refuse_shared_folders(half, filled)


def _other_part(name: str, files: FolderFiles, others: Collection[str], *, has_splits: bool) -> str | None:
    """Return what else a folder can be; None: it is a class."""
    if {"image", "mask"} <= {folder_words(inner).content for inner in files.inner}:
        return f"images and masks: it has a folder of each: {some(list(files.inner))}"
    if files.inner and not files.direct and {*files.inner} <= {*others}:
        return f"a part: it has folders with the names of classes beside it: {some(list(files.inner))}"
    if any(name.lower() in other.lower() for other in others):  # a pair of classes, as `mask` and `no_mask`
        return None
    words = folder_words(name)
    if words.exact and words.content == "mask":
        return "masks: by its name, it has the masks of the images beside it"
    if words.exact and words.split not in {"", TRAIN} and not has_splits:  # a train may be a vehicle
        return f"a split: by its name, it is for {words.split}, and the folders beside it for training"
    return None


def _refuse_shared_folders(half: str, filled: Mapping[str, FolderFiles]) -> None:
    """Refuse folders that all have the same folders in them, two or more."""
    if len(filled) < 2 or any(files.direct for files in filled.values()):
        return
    shared = set.intersection(*({*files.inner} for files in filled.values()))
    if len(shared) > 1:
        raise DataError(
            f"{clean_name(half)}: each of its folders has the same folders, and both can be the classes:\n"
            f"  outer: {len(filled)} classes: {some(list(filled))}\n"
            f"  inner: {len(shared)} classes: {some(sorted(shared))}",
            hint="Give --data one of its folders, or a list of images and labels (LIST.csv), if the inner are"
            f" the classes; {_AS_CLASSES}",
        )
