"""The theme that was chosen by its key, kept in the state folder; an unreadable file is ignored."""

import contextlib
import os
from collections.abc import Mapping

from mptui.io.atomic import replace_file
from mptui.regular import read_regular
from mptui.tui.setup.last_selection import state_folder
from mptui.tui.themes import DARK, THEMES

CHOICE = "MPTUI_THEME"
"""Variable that names a theme."""

_NAME = "theme"
_LARGEST = 64


def theme_at_start(environ: Mapping[str, str] = os.environ) -> str:
    """Return the theme to start with: that of MPTUI_THEME, else the last one chosen, else dark.

    With NO_COLOR, in which a light theme is hard to read on a dark terminal, the last choice is not taken up.
    """
    named, known = environ.get(CHOICE), {theme.name for theme in THEMES}
    if named in known:
        return named
    if environ.get("NO_COLOR"):
        return DARK.name
    try:
        chosen = read_regular(state_folder(environ) / _NAME, _LARGEST).decode(errors="replace").strip()
    except OSError:
        return DARK.name
    return chosen if chosen in known else DARK.name


def keep_theme(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Keep the name of a theme for the next start; a failed write is ignored."""
    folder = state_folder(environ)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _NAME, f"{name}\n".encode())
