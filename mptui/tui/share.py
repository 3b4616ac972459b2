"""Writes a screen to files that can be shown to others: SVG and PNG, and two lines on the run."""

import re
import time
from pathlib import Path

from mptui import text as fmt
from mptui.errors import DiskError
from mptui.io.files import replace_file
from mptui.runs.listing.rows import row_of
from mptui.runs.store.directory import status_of
from mptui.runs.view.words import closing_line
from mptui.text import clean
from mptui.tui.terminal.screen_picture import picture_of

_LOADED = re.compile(r"@font-face\s*{[^}]*}")


def write_screen(svg: str, where: str, run: Path | None) -> Path:
    """Write a picture of a screen, and beside it two lines on its run, into the current folder.

    Args:
        svg: The picture.
        where: Name of the screen.
        run: Directory of the run that it shows, if it shows one.

    Returns:
        The file of the picture; the same as PNG and the words have its name with `.png` and `.txt`.

    Raises:
        DiskError: The folder is not writable.
    """
    path = Path(time.strftime(f"mptui-{where}-%Y%m%d-%H%M%S.svg"))
    svg = without_fonts(svg)
    try:
        replace_file(path, svg.encode(errors="backslashreplace"))
        replace_file(path.with_suffix(".png"), picture_of(svg))
        if run is not None:
            replace_file(path.with_suffix(".txt"), run_words(run).encode(errors="backslashreplace"))
    except OSError as error:
        raise DiskError(f"{path}: {error.strerror}", hint="start mptui in a folder of yours") from error
    return path


def without_fonts(svg: str) -> str:
    """Return a picture without the fonts that it would load from other sites."""
    return _LOADED.sub("", svg)


def run_words(run: Path) -> str:
    """Return two lines: what the run trains and how fast, and how it stands."""
    summary = status_of(run)
    row = row_of(run, summary)
    rate = f"{row.rate:,.0f} images/s" if row.rate is not None else ""
    taken = f"in {fmt.duration(row.seconds)}" if row.seconds else ""
    parts = (row.name, row.model, row.data, row.precision, rate, taken)
    return f"{clean(' · '.join(filter(None, parts)), 400)}\n{closing_line(run, summary)}\n"
