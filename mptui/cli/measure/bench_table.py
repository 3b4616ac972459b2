"""The tables of `mptui bench`: one line per variant."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from mptui import format as fmt
from mptui.cli.table import TableColumn, fitting, lines, terminal_width
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.bench.bench import AblationRun, Row
    from mptui.lab.bench.stats import Ratio

_BAR = 12
_WIDE = 4.0
"""An interval whose ends differ by more than this factor only says that there were too few rounds."""


_T = TypeVar("_T")


def by_name(only: str | None, known: Mapping[str, _T], fault: str) -> list[_T]:
    """Return the entries of `known` named in `--only NAME,…`, in its order; all without it.

    Raises:
        ConfigError: A name is unknown; `fault` is the message.
    """
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"--only {', '.join(missing)}: {fault}", hint=f"there are {', '.join(known)}")
    return [known[name] for name in names]


def print_rows(
    title: str, columns: Sequence[TableColumn], *, markdown: bool, claims: Iterable[str] | None = None
) -> None:
    """Print a table below its title, as Markdown or as wide as the terminal allows.

    Args:
        title: The line above the table.
        columns: The columns with their cells.
        markdown: Whether to print Markdown, with all columns.
        claims: Names of published claims shown in the table; their sources go to stderr.
    """
    typer.echo(clean(title))
    if markdown:
        cells = [(column.heading, *column.cells) for column in columns]
        head, *rows = [f"| {' | '.join(row)} |" for row in zip(*cells, strict=True)]
        shown = ["", head, f"|{' --- |' * len(columns)}", *rows]
    else:
        shown = lines(fitting(columns, terminal_width()))
    for line in shown:
        typer.echo(line)
    if claims is not None:
        from mptui.lab.bench.claims import sources

        typer.echo(sources(claims), err=True)


def show(lab: "AblationRun", document: dict[str, Any], *, claims: bool, markdown: bool) -> None:
    """Print the results, one line per variant; columns that don't fit are omitted.

    Args:
        lab: The measured ablation.
        document: The document of `mptui bench --json`.
        claims: Whether to show published claims.
        markdown: Whether to print Markdown.
    """
    from mptui.lab.bench.bench import NO_TIME
    from mptui.lab.bench.claims import CLAIMS
    from mptui.lab.bench.stats import rounds_text

    fastest = max((row.rate or 0.0 for row in lab.rows), default=0.0)
    rows = [_line(lab, row, fastest) for row in lab.rows]
    headings = ("", "images/s", "times", "interval", "", "memory", "first step", "loss")
    columns = [
        TableColumn(heading, [row[number] for row in rows], right=number not in {0, 4}, leave=leave)
        for number, (heading, leave) in enumerate(zip(headings, (0, 0, 0, 0, 4, 1, 2, 3), strict=True))
    ]
    names = [row.variant.name for row in lab.rows]
    if claims:
        texts = [CLAIMS[name].text if name in CLAIMS else "" for name in names]
        columns.append(TableColumn("guides say", texts, right=True))
    title = f"{document['model']} on {document['device_name']}: {rounds_text(document['rounds'])}"
    print_rows(title, columns, markdown=markdown, claims=names if claims else None)
    if markdown:
        return
    for row in lab.rows:
        if row.failed not in {None, NO_TIME}:
            typer.echo(clean(f"{row.variant.title} was not measured: {row.failed}"))
    if untried := [row.variant.title for row in lab.rows if row.failed == NO_TIME]:
        typer.echo(clean(f"not measured for lack of time: {', '.join(untried)}", limit=1000))


def _line(lab: "AblationRun", row: "Row", fastest: float) -> list[str]:
    none = fmt.UNKNOWN
    if row.failed is not None:
        return [row.variant.title, none, none, none, "", none, none, none]
    over, rate = lab.over_baseline(row), row.rate
    baseline = row.variant.against is None
    return [
        row.variant.title,
        none if rate is None else f"{rate:,.1f}",
        "1.00" if baseline else none if over is None else f"{over.value:.2f}",
        "" if baseline or over is None else _interval(over),
        "█" * round(_BAR * rate / fastest) if rate is not None and fastest else "",
        none if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f} MiB",
        none if row.first_step_s is None else f"{row.first_step_s:.1f} s",
        _loss(lab, row),
    ]


def _loss(lab: "AblationRun", row: "Row") -> str:
    off = lab.off_baseline(row)
    text = "–" if row.loss is None else f"{row.loss:.3f}"
    return text if off is None or row.variant.against is None else f"{text} {off:+.1%}"


def _interval(over: "Ratio") -> str:
    if over.high == inf:
        return "one round"
    if over.high > _WIDE * over.low:
        return "too wide"  # two or three rounds that differ
    text = f"{over.low:.2f}–{over.high:.2f}"
    return f"{text} noise" if over.verdict == "same" else text
