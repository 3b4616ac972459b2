"""Finds the packed files of a set, and which of them are for training and for validation."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from mptui.data.formats.folders.folder_walk import leads_to, unreadable
from mptui.data.formats.folders.split_words import TEST, TRAIN, UNLABELLED, VAL, folder_words, split_of_file
from mptui.data.formats.layout import natural_key
from mptui.errors import TwoReadingsError
from mptui.text import clean_name, shell_word, some

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
            hint=f"Give --data one of them, as {inner}" + ", or move the others out of it." * ("" in folders),
        )


def _split_of(path: str, file: str) -> str:
    folder, name = os.path.split(os.path.relpath(file, path))
    return split_of_file(name) or folder_words(os.path.basename(folder)).split
