"""The last selection, saved in the state folder; an unreadable file is ignored."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from mptui.io.atomic import replace_file
from mptui.io.places import base_folder
from mptui.regular import read_regular
from mptui.text import clean

_NAMES = ("profile", "model", "data", "epochs")
_LONGEST = 4096
_LARGEST = 1 << 16


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state other than settings, which may not exist."""
    return base_folder("XDG_STATE_HOME", ".local/state", environ) / "mptui"


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
