"""What goes to stdout and stderr: results to the one, progress and next steps to the other."""

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

import typer

from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: object) -> None:
    """Print the one JSON document of a command called with --json; NaN and infinities are refused."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_next(command: str) -> None:
    """Tell on stderr what a person may want to do next."""
    typer.echo(clean(f"Next: {command}", limit=4096), err=True)


def console(file: TextIO | None = None, **options: Any) -> "Console":  # noqa: ANN401 - rich's own options
    """A rich console that takes all text literally: nothing from outside is read as markup."""
    from rich.console import Console

    return Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False, **options)
