"""What a person chose last, in the state folder; an unreadable file is ignored."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence

from mptui.io.files import read_regular, replace_unsynced, state_folder
from mptui.text import clean

_FILE = "last.json"
_NAMES = ("profile", "model", "data", "epochs", "charts")
"""The selection of the picker, and the grid of charts (`mptui.tui.widgets.grid`)."""
_LISTS = ("pinned", "used")
"""The runs behind the live charts, and what was done by the palette, the last at the end."""
_OF_DATA = ("MPTUI_DATA_NAME", "MPTUI_DATA_PATH")
_LONGEST = 4096
_LARGEST = 1 << 16


def load_last(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the last choices by name, or what a variable of the environment names; none is empty.

    A name that no field can show as it is stays in the environment, where it acts beside an empty field.
    """
    data = [environ[name] for name in _OF_DATA if environ.get(name)]
    named = {"data": data[0]} if len(data) == 1 else {}  # both are a set and where it is: no field has that
    if model := environ.get("MPTUI_MODEL_NAME"):
        named["model"] = model
    return _saved(environ) | {name: value if _text(value) == value else "" for name, value in named.items()}


def load_list(name: str) -> list[str]:
    """Return a list that was saved; without one it is empty."""
    return _lists(_document(os.environ))[name]


def _document(environ: Mapping[str, str]) -> dict[str, object]:
    try:
        document = json.loads(read_regular(state_folder(environ) / _FILE, _LARGEST))
    except (OSError, ValueError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {}


def _saved(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what was saved; missing or invalid entries are empty."""
    return _texts(_document(environ))


def _texts(document: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(document.get(name)) for name in _NAMES}


def _lists(document: Mapping[str, object]) -> dict[str, list[str]]:
    found = {name: document.get(name) for name in _LISTS}
    return {
        name: [_text(each) for each in values] if isinstance(values, list) else []
        for name, values in found.items()
    }


def save_last(choices: Mapping[str, str | Sequence[str]], environ: Mapping[str, str] = os.environ) -> None:
    """Save these choices, by the names of texts and lists, beside the others; a failed write is ignored."""
    folder, document = state_folder(environ), _document(environ)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        kept = {**_texts(document), **_lists(document), **choices}
        replace_unsynced(folder / _FILE, json.dumps(kept).encode())


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str) else ""
