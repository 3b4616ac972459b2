"""The pages of a report: HTML, one file that loads nothing, and Markdown."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from mptui import __version__
from mptui import text as fmt
from mptui.lab.report.pictures import CurveLine, exponents_html, figure_of, timeline_html
from mptui.lab.report.report import RunReport
from mptui.registry.tasks import metric_word
from mptui.runs.listing.difference import curves_of
from mptui.runs.listing.rows import cause_words, figure_name, figure_texts, what_differs
from mptui.runs.view.words import LOSS
from mptui.text import clean, markdown

# The HTML of a report: one file that loads nothing, for light and dark screens
# -----------------------------------------------------------------------------

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html_page(reports: Sequence[RunReport], compared: dict[str, Any] | None) -> str:
    """Return the page on one run or several.

    Args:
        reports: The runs.
        compared: Their comparison (`mptui.runs.listing.rows.compare`); None for a single run.
    """
    title = " · ".join(report.name for report in reports)
    room = files("mptui.lab.report")
    style, script = (room.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    charts = f'<div class="charts">{"".join(_charts(reports))}</div>'
    if compared is None:
        parts = [_overview(reports[0]), "<h3>Curves</h3>", charts, _details_of(reports[0])]
    else:
        named = [
            f"<h2>{escape(report.name)}</h2>{_overview(report)}{_details_of(report)}" for report in reports
        ]
        differing = _table(comparison_rows(compared), heading=True)
        told = f'<p class="quiet">{escape(cause_words(what_differs(compared)))}</p>'
        parts = [charts, f"<h2>Differences</h2>{told}{differing}", *named]
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">mptui {__version__}. Curves: the wheel zooms, a drag moves, a double click '
        "shows all; or + − 0 and arrows.</p>",
        *parts,
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
            yield figure_of(name, reports[0].view.title_of(name), _with_abandoned(lines), single=True)
        return
    for name, label in curves_of([report.view for report in reports]):
        lines = [
            CurveLine(report.view.title_of(name, report.name), history, number)
            for number, report in enumerate(reports, 1)
            if (history := report.view.histories.get(name, {}).get(label)) is not None
        ]
        title = f"{name} · {label}" if label and label != name else name
        yield figure_of(name, title, _with_abandoned(lines), single=False)


def _with_abandoned(lines: Sequence[CurveLine]) -> list[CurveLine]:
    """Put the branch that each curve has left before them, so that it is drawn behind."""
    left = [
        CurveLine(f"{line.label}, abandoned", line.history.abandoned, 0)
        for line in lines
        if line.history.abandoned is not None
    ]
    return [*left, *lines]


def _overview(report: RunReport) -> str:
    timeline = _titled("Timeline", timeline_html(report.view))
    branches = _titled("Branches", _table(report.branches, heading=True))
    precision = _titled("Precision over time", _table(report.precision, heading=True))
    return _table(list(report.facts.items())) + timeline + branches + precision


def _details_of(report: RunReport) -> str:
    parts = [
        _titled("Loss scale", _table(list(report.scale.items()))),
        _titled("Memory", _table(list(report.memory.items()))),
        _titled("Numerics, the last probe", _numerics(report)),
        _titled("Pictures, the newest", _pictures(report)),
        _details("Classes, the last validation", _table(report.classes, heading=True)),
        _details("What happened", _table(report.events)),
        *(
            _details(title, f"<pre>{escape(text)}</pre>")
            for title, text in {"Settings": report.settings, **report.documents}.items()
        ),
    ]
    return "".join(parts)


def _numerics(report: RunReport) -> str:
    if not report.numerics:
        return ""
    words = f'<p class="quiet">{escape(report.numerics_words)}</p>'
    return words + exponents_html(report.view) + _table(report.numerics, heading=True)


def _pictures(report: RunReport) -> str:
    shown = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure>'
        for name, png in report.pictures.items()
    )
    return f'<div class="pictures">{shown}</div>' if shown else ""


def comparison_rows(compared: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the names of the runs, then a row for each differing setting or version and each figure."""
    rows = [("", *map(str, compared["runs"]))]
    for key, values in {**what_differs(compared), **compared["figures"]}.items():
        if any(value is not None for value in values):
            texts = (clean(text, 200) for text in figure_texts(compared, key, values))
            rows.append((figure_name(key), *texts))
    return rows


def _titled(title: str, inner: str) -> str:
    return f"<h3>{title}</h3>{inner}" if inner else ""


def _details(title: str, inner: str) -> str:
    return f"<details><summary>{title}</summary>{inner}</details>" if inner else ""


def _table(rows: Sequence[Sequence[str]], *, heading: bool = False) -> str:
    lines = []
    for number, (first, *rest) in enumerate(rows):
        tag = "th" if heading and not number else "td"
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in rest)
        lines.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>" if lines else ""


# The Markdown of a report: the same facts as the HTML, with curves as bars by epoch
# ----------------------------------------------------------------------------------

_BARS = 32


def markdown_page(reports: Sequence[RunReport], compared: dict[str, Any] | None) -> str:
    """Return the page on one run or several; see `html_page`."""
    blocks = [f"# {markdown(' · '.join(report.name for report in reports))}"]
    if compared is not None:
        title, table = _titled_table("## Differences", comparison_rows(compared))
        blocks += [title, markdown(cause_words(what_differs(compared))), table]
    for report in reports:
        blocks += _section(report)
    return "\n\n".join(blocks) + "\n"


def _section(report: RunReport) -> list[str]:
    curves = [
        (metric_word(name), fmt.sparkline(history.tail(_BARS).tolist()), fmt.figure(history.last))
        for name, history in report.view.by_epoch.items()
    ]
    return [
        *_titled_table(f"## {markdown(report.name)}", _headed(report.facts)),
        *_titled_table("### Curves", [("by epoch", "", "last"), *curves] if curves else []),
        *_titled_table("### Time", _headed(report.time)),
        *_titled_table("### Branches", report.branches),
        *_titled_table("### Precision", report.precision),
        *_titled_table("### Loss scale", _headed(report.scale)),
        *_titled_table("### Memory", _headed(report.memory)),
        *_titled_table("### Numerics, the last probe", report.numerics),
        *([markdown(report.numerics_words)] if report.numerics else []),
        *_titled_table("### Classes, the last validation", report.classes),
        "### Settings",
        f"```toml\n{report.settings.strip()}\n```",
    ]


def _headed(facts: dict[str, str]) -> list[tuple[str, str]]:
    return [("", ""), *facts.items()] if facts else []


def _titled_table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a title and a table, whose first row is the heading; nothing without rows."""
    if not rows:
        return []
    heading, *others = map(_row, rows)
    return [title, "\n".join([heading, _row(["---"] * len(rows[0])), *others])]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(markdown(cell) for cell in cells)} |"
