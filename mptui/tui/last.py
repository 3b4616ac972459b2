"""What a person chose last, in the state folder; an unreadable file is ignored."""

import contextlib
import json
import os
from collections.abc import Mapping

from mptui.io.files import read_regular, replace_file, state_folder
from mptui.text import clean

_FILE = "last.json"
_NAMES = ("profile", "model", "data", "epochs", "charts")
"""The selection of the picker, and the grid of charts (`mptui.tui.widgets.grid`)."""
_LONGEST = 4096
_LARGEST = 1 << 16


def load_last(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read the last choices by name; missing or invalid entries are empty."""
    try:
        document = json.loads(read_regular(state_folder(environ) / _FILE, _LARGEST))
    except (OSError, ValueError, RecursionError):
        document = None
    found = document if isinstance(document, dict) else {}
    return {name: _text(found.get(name)) for name in _NAMES}


def save_last(texts: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Save these choices beside the others; a failed write is ignored."""
    folder = state_folder(environ)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _FILE, json.dumps(load_last(environ) | dict(texts)).encode())


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str) else ""
