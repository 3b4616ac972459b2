"""The last selection before a run, kept in the state folder; an unreadable file is ignored."""

import contextlib
import json
import os
from collections.abc import Mapping

from mptui.io.files import read_regular, replace_file, state_folder
from mptui.text import clean

_NAMES = ("profile", "model", "data", "epochs")
_LONGEST = 4096
_LARGEST = 1 << 16


def load_last(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read the last selection by name; missing or invalid entries are empty."""
    try:
        document = json.loads(read_regular(state_folder(environ) / "last.json", _LARGEST))
    except (OSError, ValueError, RecursionError):
        document = None
    found = document if isinstance(document, dict) else {}
    return {name: _text(found.get(name)) for name in _NAMES}


def save_last(texts: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Save the selection; a failed write is ignored."""
    folder = state_folder(environ)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "last.json", json.dumps({name: texts[name] for name in _NAMES}).encode())


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str) else ""
