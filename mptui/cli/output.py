"""JSON, tables, progress, next step."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from mptui import text as fmt
from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console


# Output on stdout (results) and stderr (progress and next steps)
# ---------------------------------------------------------------

OnProgress = Callable[[int, int], None]
"""Receives the samples that are done, and all of them."""

_LINE_EVERY_S = 10.0
_SURROGATE = re.compile("[\ud800-\udfff]")


JSON_VERSION = 1
"""Version of the documents of all commands; `docs/json.md` has their keys."""


def print_json(document: Mapping[str, object], *, older: Mapping[str, str] | None = None) -> None:
    """Print the JSON document of a command with --json, in UTF-8; NaN and infinities are refused.

    Args:
        document: The document.
        older: Keys of earlier versions -> the keys that have taken their place; both are printed.
    """
    kept = {name: document[key] for name, key in (older or {}).items()}
    whole = {"version": JSON_VERSION, **document, **kept}
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)
    # a byte of a name that is not UTF-8 would be written as it is; JSON has an escape for what stands for it
    typer.echo(_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def flat_error(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with its error as other documents have it: `error` and `hint`."""
    error = summary.get("error")
    if not isinstance(error, dict):
        return dict(summary)
    return {**summary, "error": error.get("message"), "hint": error.get("hint")}


def print_next(command: str) -> None:
    """Suggest a next command on stderr."""
    typer.echo(clean(f"Next: {command}", limit=4096), err=True)


def console(file: TextIO | None = None, **options: Any) -> "Console":  # noqa: ANN401 - rich's own options
    """Return a rich console that doesn't interpret markup, as text may come from files."""
    from rich.console import Console

    return Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False, **options)


class _ProgressLines:
    """Prints the progress on stderr every `_LINE_EVERY_S` seconds, where there is no terminal for a bar."""

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` are done."""
        if time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            typer.echo(f"{done:,} of {total:,}", err=True)


@contextmanager
def file_progress(label: str = "", otherwise: OnProgress | None = None) -> Iterator[OnProgress]:
    """A progress bar on stderr; if stderr is not a terminal `otherwise`, or a line now and then."""
    if not sys.stderr.isatty():
        yield otherwise or _ProgressLines()
        return
    from rich.progress import Progress

    with Progress(console=console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


# Tables that fit the terminal by omitting whole columns; cells are never cut
# ---------------------------------------------------------------------------
# In a pipe or a file all columns are printed.

GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Args:
        heading: The text above it.
        cells: The text of each row.
        right: Whether it is aligned to the right.
        leave: Order in which columns are omitted from a table that is too wide: largest first, 0 never.
    """

    heading: str
    cells: Sequence[str]
    right: bool = False
    leave: int = 0

    @property
    def width(self) -> int:
        """Width of the widest cell, in terminal cells."""
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.heading, *self.cells))


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout in cells; None if it isn't a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(columns: Sequence[TableColumn], width: int | None) -> list[TableColumn]:
    """Return the columns that fit into `width` cells, and those that are never omitted; None: all."""
    return list(columns) if width is None else fmt.fitting(columns, width, GAP)


def lines(columns: Sequence[TableColumn]) -> list[str]:
    """Format the table as lines, headings first, without trailing spaces."""
    padded = [_padded(column) for column in columns]
    return [(" " * GAP).join(row).rstrip() for row in zip(*padded, strict=True)]


def columns_of(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Container[int],
    leave: Mapping[int, int] = {},
) -> list[TableColumn]:
    """Return the columns of rows, by number: those aligned to the left, and the order in which some leave."""
    return [
        TableColumn(heading, [row[number] for row in rows], number not in left, leave.get(number, 0))
        for number, heading in enumerate(headings)
    ]


def print_rows(columns: Sequence[TableColumn], *, title: str | None = None, markdown: bool = False) -> None:
    """Print a table, as wide as the terminal allows.

    Args:
        columns: The columns with their cells.
        title: A line above the table.
        markdown: Whether to print Markdown, with all columns.
    """
    if title is not None:
        typer.echo(clean(title))
    if markdown:
        cells = [(column.heading, *column.cells) for column in columns]
        head, *rows = [f"| {' | '.join(row)} |" for row in zip(*cells, strict=True)]
        shown = ["", head, f"|{' --- |' * len(columns)}", *rows]
    else:
        shown = lines(fitting(columns, terminal_width()))
    for line in shown:
        typer.echo(line)


def _padded(column: TableColumn) -> list[str]:
    from rich.cells import cell_len

    width = column.width
    texts = []
    for text in (column.heading, *column.cells):
        space = " " * (width - cell_len(text))
        texts.append(space + text if column.right else text + space)
    return texts
