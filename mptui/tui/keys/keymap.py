"""The user's keys, from `keys.toml` in the configuration folder.

    [live]
    pause = "p"
    checkpoint = "ctrl+s,c"

Invalid entries are ignored with a warning.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli
from textual.keys import Keys

from mptui.regular import read_regular
from mptui.text import clean
from mptui.tui.keys.bindings import KEYS, Key, heard_on

FILE_NAME = "keys.toml"
_LARGEST = 1 << 20
ALWAYS = {
    "app.back": "escape",
    "app.leave": "ctrl+c",
    "leave.stay": "escape",
    "stop.stay": "escape",
    "discard.stay": "escape",
    "switch.stay": "escape",
    "edit.cancel": "escape",
    "metrics.close": "escape",
    "help.close": "escape",
}
"""Keys that can't be remapped, so that quitting is always possible."""

_NAMED = {key.value for key in Keys} | {"question_mark", "slash", "comma", "full_stop", "minus", "plus"}
_KEY = re.compile(r"(?:(?:ctrl|shift|alt)\+)*(.+)")
_WHERES = {key.where for key in KEYS}
_BY_ID = {key.id: key for key in KEYS}


@dataclass(slots=True)
class Keymap:
    """The user's keys by id, and warnings about the file."""

    keys: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def bindings(self) -> dict[str, str]:
        """Return the keymap in Textual's form: one entry per binding."""
        entries: dict[str, str] = {}
        for name, keys in self.keys.items():
            if "{n}" in _BY_ID[name].action:
                entries |= {f"{name}.{n}": each for n, each in enumerate(keys.split(","), 1)}
            else:
                entries[name] = keys
        return entries


def load_keymap(folder: Path) -> Keymap:
    """Read `keys.toml` in `folder`; without a file the keymap is empty."""
    keymap = Keymap()
    path = folder / FILE_NAME
    try:
        document = tomli.loads(read_regular(path, _LARGEST).decode())
    except FileNotFoundError:
        return keymap
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        keymap.warnings.append(clean(f"{path}: {error}"))
        return keymap
    for name, value in _entries(document):
        fault = _fault(name, value, keymap.keys)
        if fault is None:
            kept = ALWAYS.get(name)
            keys = [key.strip() for key in value.split(",")]
            keymap.keys[name] = ",".join(keys if kept is None or kept in keys else [*keys, kept])
        else:
            keymap.warnings.append(clean(f"{path}: {name}: {fault}"))
    return keymap


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for where, table in document.items():
        if isinstance(table, dict):
            yield from ((f"{where}.{what}", value) for what, value in table.items())
        else:
            yield where, table


def _fault(name: str, value: object, chosen: Mapping[str, str]) -> str | None:
    key = _BY_ID.get(name)
    if key is None:
        near = get_close_matches(name, _BY_ID, n=1)
        return f"unknown action; did you mean {near[0]}?" if near else "unknown action"
    if not isinstance(value, str) or not value.strip():
        return 'the value must be keys as text, such as "p" or "ctrl+s,c"'
    for each in value.split(","):
        if not _is_key(each.strip()):
            return f'"{each.strip()}" is not a key'
        if (taken := _taken(each.strip(), key, chosen)) is not None:
            return f'"{each.strip()}" is already {taken.id} ({taken.help})'
    return None


def _is_key(name: str) -> bool:
    match = _KEY.fullmatch(name)
    if match is None:
        return False
    return name in _NAMED or match[1] in _NAMED or (len(match[1]) == 1 and match[1].isprintable())


def _taken(name: str, key: Key, chosen: Mapping[str, str]) -> Key | None:
    """Return another action of this key where `key` works."""
    for other in KEYS:
        if other.id != key.id and _meet(key.where, other.where):
            keys = chosen.get(other.id, other.keys).split(",")
            if name in keys:
                return other
    return None


def _meet(one: str, other: str) -> bool:
    """Whether keys of these two places are active at the same time."""
    return one == other or any({one, other} <= {key.where for key in heard_on(where)} for where in _WHERES)
