"""The table of `mptui bench`: a line for each variant."""

import sys
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import typer

from mptui.cli.output import console
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.bench.bench import AblationRun, Row
    from mptui.lab.bench.stats import Ratio

_BAR = 12
_BETWEEN = 2  # cells between two columns, as rich has them
_WIDE = 4.0
"""An interval whose ends are so many times apart says nothing but that there were too few rounds."""


def show(
    lab: "AblationRun", document: dict[str, Any], *, claims: bool, style: Literal["table", "markdown"]
) -> None:
    """Print the figures, a line each: what does not fit the width is left out, and nothing is cut or wrapped.

    Args:
        lab: What was measured.
        document: Of `mptui bench --json`.
        claims: Whether what guides promise stands beside.
        style: How it is written.
    """
    from mptui.lab.bench.bench import NO_TIME
    from mptui.lab.bench.stats import told_rounds

    headings = ["", "images/s", "times", "interval", "", "memory", "first step", "loss"]
    headings += ["guides say"] if claims else []
    fastest = max((row.rate or 0.0 for row in lab.rows), default=0.0)
    lines = [_line(lab, row, fastest, claims) for row in lab.rows]
    title = f"{document['model']} on {document['device_name']}: {told_rounds(document['rounds'])}"
    if style == "markdown":
        typer.echo(f"{title}\n")
        typer.echo(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
        for line in lines:
            typer.echo(f"| {' | '.join(line)} |")
        return
    from rich.cells import cell_len
    from rich.table import Table

    width = None if sys.stdout.isatty() else 120
    out = console(width=width)
    widths = [max(map(cell_len, column)) + _BETWEEN for column in zip(headings, *lines, strict=True)]
    shown = _fitting(headings, widths, out.width)
    typer.echo(clean(title))
    table = Table(box=None, pad_edge=False)
    for number in shown:
        table.add_column(headings[number], justify="left" if number in {0, 4} else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[number] for number in shown))
    out.print(table)
    for row in lab.rows:
        if row.failed not in {None, NO_TIME}:
            typer.echo(clean(f"{row.variant.title} was not measured: {row.failed}"))
    if untried := [row.variant.title for row in lab.rows if row.failed == NO_TIME]:
        typer.echo(clean(f"there was no time to measure: {', '.join(untried)}", limit=1000))


def _fitting(headings: Sequence[str], widths: Sequence[int], width: int) -> list[int]:
    """The columns that fit into `width` cells: the least needed ones go first."""
    shown = list(range(len(headings)))
    for heading in ("", "loss", "first step", "memory"):
        if sum(widths[number] for number in shown) <= width:
            break
        shown.remove(headings.index(heading, 1))
    return shown


def _line(lab: "AblationRun", row: "Row", fastest: float, claims: bool) -> list[str]:
    if row.failed is not None:
        return [row.variant.title, "–", "–", "–", "", "–", "–", "–", *(["–"] if claims else [])]
    over, rate = lab.over_baseline(row), row.rate
    baseline = row.variant.against is None
    line = [
        row.variant.title,
        f"{rate:,.1f}" if rate is not None else "–",
        "1.00" if baseline else f"{over.median:.2f}" if over is not None else "–",
        "" if baseline or over is None else _interval(over),
        "█" * round(_BAR * rate / fastest) if rate is not None and fastest else "",
        f"{row.peak_bytes / 2**20:,.0f} MiB" if row.peak_bytes is not None else "–",
        f"{row.first_step_s:.1f} s" if row.first_step_s is not None else "–",
        _loss(lab, row),
    ]
    return [*line, _claim(row.variant.name)] if claims else line


def _loss(lab: "AblationRun", row: "Row") -> str:
    off = lab.off_baseline(row)
    told = "–" if row.loss is None else f"{row.loss:.3f}"
    return told if off is None or row.variant.against is None else f"{told} {off:+.1%}"


def _interval(over: "Ratio") -> str:
    if over.high == inf:
        return "one round"
    if over.high > _WIDE * over.low:
        return "too wide"  # of two or three rounds that differ
    told = f"{over.low:.2f}–{over.high:.2f}"
    return f"{told} noise" if over.verdict == "same" else told


def _claim(name: str) -> str:
    from mptui.lab.bench.claims import CLAIMS

    claim = CLAIMS.get(name)
    if claim is None:
        return ""
    parts = [
        f"{claim.speed:.2f}" if claim.speed else "",
        f"{claim.memory:.0%} memory" if claim.memory else "",
    ]
    return ", ".join(part for part in parts if part)
