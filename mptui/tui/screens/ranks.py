"""The screen of the ranks: a row for each with median, worst and spread, and who is slow."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from textual.app import ComposeResult
from textual.content import Content
from typing_extensions import override

from mptui import text as fmt
from mptui.events import RankRow, RanksSampled
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.screens.page import SearchedPage, SearchField, TooSmall, ViewPage, has_words
from mptui.tui.widgets.basics import KeyBar, Lines, Panel
from mptui.tui.widgets.header import Header

# Panels of the screen of the ranks: a row for each with median, worst and spread, and who is slow
# ------------------------------------------------------------------------------------------------

_SILENT_S = 10.0
"""Seconds without a sign of life from which a rank is marked: it beats every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column of the table.

    Attributes:
        title: Its heading.
        width: Its cells, with a gap before it.
        value: Returns the figure of a row, given the number of measured steps; None if unknown.
        show: Formats a figure.
        words: Returns the words of a row, in a column without figures.
        lowest: Whether a low figure is the worst.
        leave: On a narrow screen the columns with the highest are left out first; 0: never.
    """

    title: str
    width: int
    value: Callable[[RankRow, int], float | None] = lambda row, steps: None
    show: Callable[[float], str] = str
    words: Callable[[RankRow], str] | None = None
    lowest: bool = False
    leave: int = 0

    def cell(self, value: float | None) -> str:
        """Format a figure."""
        return self.fit(fmt.UNKNOWN if value is None else self.show(value))

    def fit(self, text: str) -> str:
        """Align a text right in the width of the column."""
        return f"{clean(text, self.width - 1):>{self.width}}"


def _seconds(value: float) -> str:
    """Format the time of a part of a step in at most six cells."""
    if value < 0.00995:
        return f"{1000 * value:.1f} ms"
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.3g} s"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _age(value: float) -> str:
    return f"{value:.0f} s"


def _slowest(row: RankRow, steps: int) -> float | None:
    return row.slowest / steps if steps > 0 else None


def _clocks(row: RankRow) -> str:
    """Return why the clocks of a rank are reduced; `ok` if they are not, unknown without a sensor."""
    if row.throttle:
        return ", ".join(row.throttle)
    return fmt.UNKNOWN if row.temperature_c is None else "ok"


_RANK = 6
_COLUMNS = (
    _Column(title="busy", width=6, value=lambda row, _: row.utilisation, show=_share, lowest=True),
    _Column(title="memory", width=9, value=lambda row, _: row.memory_used, show=fmt.size, leave=1),
    _Column(title="°C", width=4, value=lambda row, _: row.temperature_c, show=_whole, leave=2),
    _Column(title="clocks", width=7, words=_clocks, leave=3),
    _Column(title="data", width=7, value=lambda row, _: row.data_s, show=_seconds),
    _Column(title="forward", width=8, value=lambda row, _: row.forward_s, show=_seconds),
    _Column(title="backward", width=9, value=lambda row, _: row.backward_s, show=_seconds),
    _Column(title="others", width=7, value=lambda row, _: row.wait_s, show=_seconds),
    _Column(title="slowest", width=8, value=_slowest, show=_share),
    _Column(title="beat", width=5, value=lambda row, _: row.silent_s, show=_age),
)
"""They fit into a terminal of 80 columns together."""
_MORE_WORDS, _WIDEST_GAP = 10, 4
"""Most cells that are added to the column of words, and to each column, on a wide screen."""
_HOST = _Column(title="host", width=18, words=lambda row: row.host)

ORDERS = ("rank", "slowest", "data", "forward", "backward", "others", "busy", "memory", "°C", "beat")
"""What the table is sorted by, in the order in which the key cycles through it."""


class RankTable(Panel):
    """The ranks, in an order of choice; those that don't fit can be scrolled to."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("ranks", id=id)
        self.words: Sequence[str] = ()
        self._order = ORDERS[0]
        self._first = 0

    def sort(self) -> None:
        """Sort by the next column, the worst first."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._first = 0

    def scroll_rows(self, rows: int) -> None:
        """Scroll by so many rows."""
        self._first = max(0, self._first + rows)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out a heading, the rows that fit, and median, worst and spread of all."""
        event = view.ranks
        if event is None:
            return [
                Content.styled(
                    "the ranks have not reported yet: the first report comes with the first steps", "$quiet"
                )
            ]
        columns, rows = _columns(width), _sorted(event, self._order)
        if self.words:
            rows = [row for row in rows if has_words(f"{row.rank} {row.host} {_clocks(row)}", self.words)]
        if not rows:
            return [Content.styled("no rank has these words: esc shows all", "$quiet")]
        room = max(1, self.content_size.height - 4)
        self._first = max(0, min(self._first, len(rows) - room))
        shown = rows[self._first : self._first + room]
        part = f" {self._first + 1}-{self._first + len(shown)} of" if len(shown) < len(rows) else ""
        words = f" · /{clean(' '.join(self.words), 20)}" if self.words else ""
        self.retitle(f"ranks ·{part} {len(rows)} by {self._order} · step {event.step:,}{words}")
        lines = [_heading(columns, self._order), *(_line(row, event, columns) for row in shown)]
        return [*lines, *[Content("")] * min(1, room - len(shown)), *_statistics(event, columns)]


def _columns(width: int) -> list[_Column]:
    """Return the columns that fit besides that of the rank; if wide, with the host and longer words."""
    columns = fmt.fitting(_COLUMNS, width - _RANK)
    room = max(0, width - _RANK - sum(column.width for column in columns))
    if room >= _HOST.width:
        room -= _HOST.width
        columns.append(_HOST)
    words = min(room, _MORE_WORDS)
    gap = min((room - words) // len(columns), _WIDEST_GAP)
    return [replace(each, width=each.width + gap + words * (each.title == "clocks")) for each in columns]


def _sorted(event: RanksSampled, order: str) -> list[RankRow]:
    column = next((column for column in _COLUMNS if column.title == order), None)
    if column is None:
        return list(event.rows)

    def place(row: RankRow) -> tuple[bool, float]:
        value = column.value(row, event.steps)
        return value is None, (value or 0.0) * (1 if column.lowest else -1)

    return sorted(event.rows, key=place)


def _heading(columns: Sequence[_Column], order: str) -> Content:
    titles = [
        ("rank", f"{'rank':>{_RANK}}"),
        *((column.title, column.fit(column.title)) for column in columns),
    ]
    return Content.assemble(
        *((cell, "$text-accent" if title == order else "$quiet") for title, cell in titles)
    )


def _line(row: RankRow, event: RanksSampled, columns: Sequence[_Column]) -> Content:
    slow = row.rank in event.slow
    parts = [(f"{'▸' if slow else ' '}{row.rank:>{_RANK - 1}}", "bold $text-warning" if slow else "bold")]
    for column in columns:
        if column.words is None:
            late = column.title == "beat" and (row.silent_s or 0.0) >= _SILENT_S
            parts.append((column.cell(column.value(row, event.steps)), "$text-error" if late else ""))
        else:
            hot = column.title == "clocks" and row.throttle
            parts.append((column.fit(column.words(row)), "$text-warning" if hot else "$quiet"))
    return Content.assemble(*parts)


def _statistics(event: RanksSampled, columns: Sequence[_Column]) -> list[Content]:
    """Lay out the median, the worst and the spread of each column of figures."""
    lines = {name: f"{name:<{_RANK}}" for name in ("median", "worst", "spread")}
    for column in columns:
        values = [value for row in event.rows if (value := column.value(row, event.steps)) is not None]
        least, most = (min(values), max(values)) if values else (None, None)
        spread = None if least is None or most is None else most - least
        figures = (median(values) if values else None, least if column.lowest else most, spread)
        for name, value in zip(lines, figures, strict=True):
            lines[name] += column.cell(value) if column.words is None else column.fit("")
    return [Content.styled(line, "$quiet") for line in lines.values()]


class SlowRanks(Panel):
    """Who is slower than the others, how often, and why."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("slow ranks", id=id)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the verdict in as many lines as it takes; "…" tells that it is longer than the panel."""
        event = view.ranks
        if event is None:
            return [Content("")]
        words, tone = event.verdict, "$text-warning"
        if not words:
            words, tone = f"none: no rank was behind the others in {event.steps} measured steps", "$quiet"
            if event.sharded:
                words += " by its data; in each pass, ranks wait for each other"
        rows = max(1, self.content_size.height)
        lines = textwrap.wrap(words, width, max_lines=rows, placeholder=" …")
        return [Content.styled(line, tone) for line in lines]


# The screen of the ranks: a row for each process of a run, and who is slow
# -------------------------------------------------------------------------


class RanksScreen(SearchedPage, ViewPage):
    """Shows the ranks of a run, sorted by what is in question."""

    where = "ranks"
    BINDINGS = bindings("ranks")
    DEFAULT_CSS = """
    RanksScreen {
        RankTable { height: 1fr; }
        SlowRanks { height: 5; }
        &.-short SlowRanks { height: 4; }
    }
    """

    def compose(self) -> ComposeResult:
        """Lay out the table, the verdict and the keys."""
        yield Header()
        yield RankTable(id="ranks")
        yield SlowRanks(id="slow")
        yield SearchField("words of a rank, its host or its clocks, such as: node-3")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    @override
    def wheel(self, lines: int) -> None:
        self.action_scroll(lines)

    def action_scroll(self, rows: int) -> None:
        """Scroll by so many ranks."""
        self.query_one(RankTable).scroll_rows(rows)
        self.show()

    def searched(self, words: list[str]) -> None:
        """Show the ranks with these words."""
        self.query_one(RankTable).words = words
        self.show()

    def go_to_match(self, way: int) -> None:
        """Scroll to the next rank."""
        self.action_scroll(way)

    @override
    def back(self) -> None:
        if not self.end_search():
            super().back()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(RankTable).sort()
        self.show()
