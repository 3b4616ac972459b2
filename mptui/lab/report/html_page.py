"""The HTML of a report: one file that loads nothing, for light and dark screens."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from mptui import __version__
from mptui import format as fmt
from mptui.lab.report.curve_svg import CurveLine, figure_of
from mptui.lab.report.run_report import RunReport
from mptui.runs.listing.run_curves import curves_of
from mptui.runs.view.labels import LOSS
from mptui.text import clean

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html_page(reports: Sequence[RunReport], compared: dict[str, Any] | None) -> str:
    """Return the page on one run or several.

    Args:
        reports: The runs.
        compared: Their comparison (`mptui.runs.store.compare.compare`); None for a single run.
    """
    title = " · ".join(report.name for report in reports)
    room = files("mptui.lab.report")
    style, script = (room.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    several = _table(comparison_rows(compared), heading=True) if compared is not None else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">mptui {__version__}. Curves: the wheel zooms, a drag moves, a double click '
        "shows all; or + − 0 and arrows.</p>",
        f'<div class="charts">{"".join(_charts(reports))}</div>',
        f"<h2>Differences</h2>{several}" if several else "",
        *map(_section, reports),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body>{''.join(body)}<script>{script}</script></body></html>\n"
    )


def _charts(reports: Sequence[RunReport]) -> Iterable[str]:
    if len(reports) == 1:
        charts = reports[0].view.histories
        for name, histories in sorted(charts.items(), key=lambda chart: chart[0] != LOSS):
            lines = [CurveLine(label, each, n % 8 + 1) for n, (label, each) in enumerate(histories.items())]
            yield figure_of(name, lines, single=True)
        return
    for name, label in curves_of([report.view for report in reports]):
        lines = [
            CurveLine(report.name, history, number)
            for number, report in enumerate(reports, 1)
            if (history := report.view.histories.get(name, {}).get(label)) is not None
        ]
        title = f"{name} · {label}" if label and label != name else name
        yield figure_of(title, lines, single=False)


def _section(report: RunReport) -> str:
    parts = [f"<h2>{escape(report.name)}</h2>", _table(list(report.facts.items()))]
    if report.numerics:
        parts += ["<h3>Numerics, the last probe</h3>", _table(report.numerics, heading=True)]
    for name, png in report.pictures.items():
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        parts.append(f'<p>{escape(name)}<br><img alt="{escape(name)}" src="{source}"></p>')
    parts += [
        _details("What happened", _table(report.events)),
        _details("Settings", f"<pre>{escape(report.settings)}</pre>"),
        _details("Environment", f"<pre>{escape(report.environment)}</pre>"),
    ]
    return "".join(parts)


def comparison_rows(compared: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the names of the runs, then a row for each differing setting and each figure."""
    rows = [("", *map(str, compared["runs"]))]
    for table in ("settings", "figures"):
        for key, values in compared[table].items():
            if any(value is not None for value in values):
                rows.append((key, *map(_said, values)))
    return rows


def _said(value: object) -> str:
    if value is None:
        return fmt.UNKNOWN
    return fmt.figure(value) if isinstance(value, float) else clean(str(value), 200)


def _details(title: str, inner: str) -> str:
    return f"<details><summary>{title}</summary>{inner}</details>"


def _table(rows: Sequence[Sequence[str]], *, heading: bool = False) -> str:
    lines = []
    for number, (first, *rest) in enumerate(rows):
        tag = "th" if heading and not number else "td"
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in rest)
        lines.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>" if lines else ""
