"""`mptui report`: a page on one run, or several beside each other, to show to others."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import print_next
from mptui.cli.use.used_run import UsedRun
from mptui.errors import ConfigError
from mptui.text import clean

_MOST = 8
_PICTURE_BYTES = 1_200_000
"""Largest size of all pictures in a report, which base64 makes a third larger."""


class ReportOptions(UsedRun):
    """The runs, and the file to write."""

    runs: list[str] = o.argument(
        "RUN…",
        "Names of runs, their starts, or their directories: up to eight.",
        autocompletion=completion.runs,
    )
    format: str = o.option("html", "html|md", "One HTML file that loads nothing, or Markdown.")
    output: Path | None = o.option(
        None, "FILE", "File to write; default: report.html or report.md.", "--out", "-o"
    )


def report(options: Annotated[ReportOptions, "runs format output force runs_dir"]) -> None:
    """Write a page on one run or several: curves, facts, settings."""
    from mptui.io.files import write_synced
    from mptui.io.written_files import OutputFiles
    from mptui.lab.report.pages import html_page, markdown_page
    from mptui.lab.report.report import read_report
    from mptui.runs.listing.rows import compare
    from mptui.runs.store.directory import find_run

    kind = _kind(options.format)
    place, files = (
        options.output or Path(f"report.{kind}"),
        OutputFiles(force=options.force, option="--out"),
    )
    files.check(place)
    if len(options.runs) > _MOST:
        raise ConfigError(f"{len(options.runs)} runs in one report", hint=f"name at most {_MOST}")
    paths = list(dict.fromkeys(find_run(options.runs_dir, run) for run in options.runs))
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
