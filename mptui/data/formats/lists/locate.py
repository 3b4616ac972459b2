"""Finds the files of a list, whose names may lack their folder or their ending."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from mptui.data.decode.image import EXTENSIONS
from mptui.errors import TwoReadingsError
from mptui.text import clean_name

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
        self._list, self._words = path, words
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
            self.root, self._folders = above, found

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
            hint="Write the folder into the list: images/1.jpg.",
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
