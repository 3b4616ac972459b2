"""`mptui report`: a page on one run, or several beside each other, to show to others."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.options import Force
from mptui.cli.output import print_next
from mptui.errors import ConfigError
from mptui.text import clean

_MOST = 8
_PICTURE_BYTES = 1_200_000
"""Largest size of all pictures in a report, which base64 makes a third larger."""

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Names of runs, their starts, or their directories: up to eight.",
        autocompletion=completion.runs,
    ),
]
Format = Annotated[
    str, typer.Option("--format", metavar="html|md", help="One HTML file that loads nothing, or Markdown.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="File to write; default: report.html or report.md."),
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    runs: Runs,
    format: Format = "html",
    output: Output = None,
    force: Force = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
) -> None:
    """Write a page on one run or several: curves, facts, settings."""
    from mptui.io.files import write_synced
    from mptui.io.written_files import OutputFiles
    from mptui.lab.report.pages import html_page, markdown_page
    from mptui.lab.report.report import read_report
    from mptui.runs.listing.rows import compare
    from mptui.runs.store.directory import find_run

    kind = _kind(format)
    place, files = output or Path(f"report.{kind}"), OutputFiles(force=force, option="--output")
    files.check(place)
    if len(runs) > _MOST:
        raise ConfigError(f"{len(runs)} runs in one report", hint=f"name at most {_MOST}")
    paths = list(dict.fromkeys(find_run(runs_dir, run) for run in runs))
    reports = [read_report(path, _PICTURE_BYTES // len(paths)) for path in paths]
    compared = compare(paths) if len(paths) > 1 else None
    text = html_page(reports, compared) if kind == "html" else markdown_page(reports, compared)
    content = text.encode(errors="backslashreplace")
    with files.write(place) as fresh:
        write_synced(fresh, [content])
    typer.echo(clean(f"{place}: {len(content) / 1000:,.0f} kB", 4096))
    print_next("compare runs on screen: mptui, then o")


def _kind(format: str) -> Literal["html", "md"]:
    if format == "html":
        return "html"
    if format == "md":
        return "md"
    raise ConfigError(f"--format {format}: unknown", hint="use html or md")
