"""The Markdown of a report: the same facts as the HTML, with curves as bars by epoch."""

from collections.abc import Sequence
from typing import Any

from mptui import format as fmt
from mptui.lab.report.html_page import comparison_rows
from mptui.lab.report.run_report import RunReport
from mptui.text import markdown

_BARS = 32


def markdown_page(reports: Sequence[RunReport], compared: dict[str, Any] | None) -> str:
    """Return the page on one run or several; see `html_page`."""
    blocks = [f"# {markdown(' · '.join(report.name for report in reports))}"]
    if compared is not None:
        blocks += _titled("## Differences", comparison_rows(compared))
    for report in reports:
        blocks += _section(report)
    return "\n\n".join(blocks) + "\n"


def _section(report: RunReport) -> list[str]:
    curves = [
        (name, fmt.sparkline(history.tail(_BARS).tolist()), fmt.figure(history.last))
        for name, history in report.view.by_epoch.items()
    ]
    return [
        *_titled(f"## {markdown(report.name)}", _headed(report.facts)),
        *_titled("### Curves", [("by epoch", "", "last"), *curves] if curves else []),
        *_titled("### Time", _headed(report.time)),
        *_titled("### Precision", report.precision),
        *_titled("### Loss scale", _headed(report.scale)),
        *_titled("### Memory", _headed(report.memory)),
        *_titled("### Numerics, the last probe", report.numerics),
        *([markdown(report.numerics_words)] if report.numerics else []),
        *_titled("### Classes, the last validation", report.classes),
        "### Settings",
        f"```toml\n{report.settings.strip()}\n```",
    ]


def _headed(facts: dict[str, str]) -> list[tuple[str, str]]:
    return [("", ""), *facts.items()] if facts else []


def _titled(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a title and a table, whose first row is the heading; nothing without rows."""
    if not rows:
        return []
    heading, *others = map(_row, rows)
    return [title, "\n".join([heading, _row(["---"] * len(rows[0])), *others])]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(markdown(cell) for cell in cells)} |"
