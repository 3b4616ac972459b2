"""Lines of what differs between runs: a setting or figure each, with a column for each run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.content import Content

from mptui import format as fmt
from mptui.text import clean
from mptui.tui.widgets.cells import fit
from mptui.tui.widgets.runs.run_lines import unstamped

_FIRST = ("status", "best_metric", "best_value", "samples_per_second", "total_s")
"""Figures above the settings, which explain them."""

_KEY, _LEAST_KEY = 30, 14
"""Cells of the keys: at most, and at least."""

_LEAST, _MOST = 7, 30
"""Cells of a column of values: of a figure, and at most; runs without room for a column have none."""
_WITH_NAME = 12
"""Cells of a column from which its heading has the name of the run besides its number."""


def _widths(runs: int, width: int) -> tuple[int, int]:
    """Return the cells of the keys and of a column."""
    key = max(_LEAST_KEY, min(_KEY, width - (_WITH_NAME + 1) * runs))
    return key, max(_LEAST, min(_MOST, (width - key) // runs))


def difference_heading(runs: Sequence[Path], width: int) -> Content:
    """Return the line with the numbers and names of the runs, in the colours of their curves.

    Runs without room for a column are counted at its beginning.
    """
    key, column = _widths(len(runs), width)
    names = [unstamped(run.name) if column >= _WITH_NAME else "" for run in runs]
    cells = [
        _right(f"{number} {name}".rstrip(), column).stylize(f"bold $series-{number}")
        for number, name in enumerate(names, 1)
    ]
    room = (width - key) // column
    hidden = len(runs) - room
    words = f"{hidden} {'run' if hidden == 1 else 'runs'} hidden" if hidden > 0 else ""
    return Content.assemble((f"{words:<{key}}", "$quiet"), *cells[:room])


def difference_lines(found: dict[str, Any], width: int) -> list[tuple[str, Content]]:
    """Return (id, line) of each differing setting and each figure, from `mptui.runs.listing.compare`."""
    figures, settings = found["figures"], found["settings"]
    first = {name: figures[name] for name in _FIRST if name in figures}
    rows = [(name, values, False) for name, values in first.items()]
    rows += [(name, values, True) for name, values in settings.items()]
    rows += [(name, values, False) for name, values in figures.items() if name not in first]
    return [
        (name, _line(name, values, width, is_setting))
        for name, values, is_setting in rows
        if any(value is not None for value in values)
    ]


def _line(name: str, values: Sequence[object], width: int, is_setting: bool) -> Content:
    key, column = _widths(len(values), width)
    words = fit(clean(name, 80).removeprefix("final_"), key - 1).pad_right(1)
    same = all(value == values[0] for value in values)
    shown = values[: (width - key) // column]
    cells = Content("").join(_right(_shown(name, value), column) for value in shown)
    return Content.assemble(
        words.stylize("$text-accent" if is_setting else "$quiet"), cells.stylize("$quiet" if same else "")
    )


def _right(text: str, width: int) -> Content:
    return fit(clean(text, 100), width - 1, right=True).pad_left(1)


def _shown(name: str, value: object) -> str:
    """Format a value with its unit."""
    if value is None:
        return fmt.UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return fmt.size(value)
    if name.endswith("_s"):
        return fmt.duration(value)
    return f"{value:,.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e6 else fmt.figure(value)
