"""Finds the packed files of a set, and which of them are for training and for validation."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mptui.data.formats.layout import TEST_NAMES, TRAIN_NAMES, VAL_NAMES, natural_key
from mptui.errors import DataError
from mptui.text import clean_name

_SPLITS = {
    **dict.fromkeys(TRAIN_NAMES, "train"),
    **dict.fromkeys((*VAL_NAMES, "dev"), "val"),
    **dict.fromkeys(TEST_NAMES, "test"),
}
_DATA = "data"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """The files of each split, in natural order. Files without a split in their names are for training."""

    train: list[str]
    val: list[str]
    test: list[str]


def find_packed(path: str, ending: str) -> PackedFiles | None:
    """Find the files of a set; None if there are none.

    The split of a file is the first word of its name (`train-00000.tar`), or the name of its folder. Searched
    are the path, its folder `data` and the folders of the splits in both.

    Args:
        path: A folder, or one such file.
        ending: How the names of the files end, such as `.tar`.

    Raises:
        DataError: A folder can't be listed.
    """
    if os.path.isfile(path):  # noqa: PTH113 - pathlib raises for odd paths
        return PackedFiles([path], [], []) if path.lower().endswith(ending) else None
    found: dict[str, list[str]] = {"train": [], "val": [], "test": [], "": []}
    for file in _files(path, ending, deep=True):
        found[_split_of(file)].append(file)
    if not any(found.values()):
        return None
    return PackedFiles(found["train"] or found[""], found["val"], found["test"])


def _files(folder: str, ending: str, *, deep: bool) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: natural_key(entry.name))
    except NotADirectoryError:
        return
    except OSError as error:
        raise DataError(
            f"{clean_name(folder)}: {error.strerror}", hint="Check that the folder is readable (ls -l)."
        ) from error
    for entry in inside:
        name = entry.name.lower()
        if name.startswith("."):
            continue
        if name.endswith(ending) and entry.is_file():
            yield entry.path
        elif deep and (name == _DATA or name in _SPLITS) and entry.is_dir():
            yield from _files(entry.path, ending, deep=name == _DATA)


def _split_of(file: str) -> str:
    folder, name = os.path.split(file)
    first = re.match(r"[a-z]*", name.lower())
    assert first is not None
    return _SPLITS.get(first[0]) or _SPLITS.get(os.path.basename(folder).lower(), "")  # noqa: PTH119
