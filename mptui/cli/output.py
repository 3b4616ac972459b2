"""Output on stdout (results) and stderr (progress and next steps)."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console

OnProgress = Callable[[int, int], None]
"""Receives the samples that are done, and all of them."""

_LINE_EVERY_S = 10.0
_SURROGATE = re.compile("[\ud800-\udfff]")


def print_json(document: object) -> None:
    """Print the JSON document of a command with --json, in UTF-8; NaN and infinities are refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    # a byte of a name that is not UTF-8 would be written as it is; JSON has an escape for what stands for it
    typer.echo(_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


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
