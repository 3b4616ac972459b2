"""Reads a path that a person typed, pasted or dropped on the terminal, as it is meant."""

import os
import shlex
import unicodedata

from mptui.io.places import expanded

_FILE = "file://"


def meant_path(text: str) -> str:
    """Return the path or name that is meant; one that exists as it stands is that.

    A file manager drops a path with quotes or backslashes, as for a shell, or as a `file://` address. A name
    with accents has two forms in Unicode: files from macOS often have the one (NFD), keyboards give the other
    (NFC). The one on the disk is returned, unless several are there and none is as typed.
    """
    if _exists(text):
        return text
    return _as_on_disk(_from_address(_unquoted(text.strip())))


def _exists(path: str) -> bool:
    return os.path.lexists(expanded(path))


def _unquoted(text: str) -> str:
    if not set("'\"\\") & set(text):
        return text
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote
        return text
    return words[0] if len(words) == 1 else text


def _from_address(text: str) -> str:
    host, slash, path = text.removeprefix(_FILE).partition("/")
    if not text.startswith(_FILE) or not slash or host not in {"", "localhost", os.uname().nodename}:
        return text
    from urllib.parse import unquote

    return unquote(f"/{path}", errors="surrogateescape")


def _as_on_disk(path: str) -> str:
    if path.isascii() or _exists(path):
        return path
    place = expanded(path)
    found = place.anchor
    for name in place.parts[bool(found) :]:
        names = [name] if _exists(os.path.join(found, name)) else _alike(found, name)  # noqa: PTH118
        if len(names) != 1:
            return path
        found = os.path.join(found, names[0])  # noqa: PTH118
    return found


def _alike(folder: str, name: str) -> list[str]:
    """Return the names in a folder that differ from `name` by their Unicode form alone."""
    try:
        names = os.listdir(folder or os.curdir)  # noqa: PTH208
    except (OSError, ValueError):
        return []
    return [each for each in names if _composed(each) == _composed(name)]


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)
