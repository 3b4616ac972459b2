"""Finds the files of a list, whose names may lack their folder or their ending."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from mptui.data.decode.image import EXTENSIONS
from mptui.errors import DataError
from mptui.text import clean_name

_TRIED = 200
"""Number of names by which the folder of a list's files is chosen."""


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
        self._list, self._words = path, words
        self.folder = os.path.dirname(os.path.abspath(path))
        tried = [name for name in islice(names, _TRIED) if name]
        if not any(_found(self.folder, name) for name in tried):
            self.folder = self._elsewhere(tried) or self.folder

    def find(self, name: str) -> str | None:
        """Return the file of a name; None if there is none.

        Raises:
            DataError: Two files have the name, which lacks an ending.
        """
        return _found(self.folder, name)

    def _elsewhere(self, names: Sequence[str]) -> str | None:
        """Return the folder beside the list in which most of the names are."""
        counts = {
            folder: sum(_found(folder, name) is not None for name in names)
            for folder in _folders_inside(self.folder)
        }
        most = max(counts.values(), default=0)
        best = [folder for folder, count in counts.items() if count == most and most]
        if len(best) > 1:
            stem = os.path.splitext(os.path.basename(self._list))[0].lower()
            for words in (re.findall(r"[a-z]+", stem), self._words):
                named = [each for each in best if any(word in _last(each).lower() for word in words)]
                best = named if len(named) == 1 else best
        if len(best) > 1:
            raise DataError(
                f"{clean_name(self._list)}: the files of its names are in two folders:\n"
                f"  {clean_name(best[0])}\n  {clean_name(best[1])}",
                hint="Write the folder into the list: images/1.jpg.",
            )
        return best[0] if best else None


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
        raise DataError(
            f"two files fit {clean_name(name)}: {clean_name(files[0])} and {clean_name(files[1])}",
            hint="Write the names in the list with their endings.",
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
