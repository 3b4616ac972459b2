"""Output on stdout (results) and stderr (progress and next steps)."""

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

import typer

from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: object) -> None:
    """Print the JSON document of a command with --json; NaN and infinities are refused."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_next(command: str) -> None:
    """Suggest a next command on stderr."""
    typer.echo(clean(f"Next: {command}", limit=4096), err=True)


def console(file: TextIO | None = None, **options: Any) -> "Console":  # noqa: ANN401 - rich's own options
    """Return a rich console that doesn't interpret markup, as text may come from files."""
    from rich.console import Console

    return Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False, **options)
