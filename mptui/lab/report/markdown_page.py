"""The Markdown of a report: the same facts as the HTML, with curves as bars by epoch."""

from collections.abc import Sequence
from typing import Any

from mptui import format as fmt
from mptui.lab.report.html_page import comparison_rows
from mptui.lab.report.run_report import RunReport

_BARS = 32


def markdown_page(reports: Sequence[RunReport], compared: dict[str, Any] | None) -> str:
    """Return the page on one run or several; see `html_page`."""
    blocks = [f"# {_escaped(' · '.join(report.name for report in reports))}"]
    if compared is not None:
        heading, *rows = comparison_rows(compared)
        blocks += ["## Differences", _table(heading, rows)]
    for report in reports:
        blocks += [f"## {_escaped(report.name)}", _table(("", ""), list(report.facts.items()))]
        curves = [
            (name, fmt.sparkline(history.tail(_BARS).tolist()), fmt.figure(history.last))
            for name, history in report.view.by_epoch.items()
        ]
        blocks += [_table(("by epoch", "", "last"), curves)] if curves else []
        if report.numerics:
            blocks += ["### Numerics, the last probe", _table(report.numerics[0], report.numerics[1:])]
        blocks += ["### Settings", f"```toml\n{report.settings.strip()}\n```"]
    return "\n\n".join(blocks) + "\n"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(heading), _row(["---"] * len(heading)), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """Escape what Markdown would read as a column, HTML or emphasis."""
    for character in "\\|<>*_`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
