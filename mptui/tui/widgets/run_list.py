"""Lists of runs: the columns that fit, most important first."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from mptui import text as fmt
from mptui.runs.listing.rows import RUNNING, RunRow, setting_words, unstamped
from mptui.runs.store.directory import CRASHED
from mptui.text import clean
from mptui.tui.keys import KEYS, bindings, display
from mptui.tui.last import load_list, save_last
from mptui.tui.widgets.basics import KeyedList, fit
from mptui.tui.widgets.first_steps import DATA, NO_RUNS, pair_lines

# Lines of the list of runs: the columns that fit, most important first
# ---------------------------------------------------------------------

_SIGNS = {RUNNING: ("●", "$text-success"), "completed": ("✓", "$text-success"), "stopped": ("■", "$quiet")}
_BAD, _DOUBTFUL = ("✗", "$text-error"), ("▲", "$text-warning")
_LEAST_NAME, _MOST_NAME = 18, 52
_LEAST_OF_FEW = 13
"""Least cells of a name on the first screen, which tells the model beside it."""
_WITH_STAMP = 40
"""Cells of the names from which they have the time of their start."""
_SECONDS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: heading, width with a gap, words, alignment; of those with `leave`, the highest go first.

    Where there is room it is as wide as its words, up to `most` cells.
    """

    title: str
    width: int
    words: Callable[[RunRow], str]
    right: bool = False
    leave: int = 0
    most: int = 0

    def fit(self, text: str) -> Content:
        """Align a text in the width of the column, with a gap before it."""
        return fit(clean(text, 200), self.width - 1, right=self.right).pad_left(1)


def ago(moment: float, now: float | None = None) -> str:
    """Return the age of a moment in its largest unit: 3 d, 5 h; `> 1 y` from a year on."""
    seconds = max(0.0, (time.time() if now is None else now) - moment)
    if seconds > _SECONDS[0][0] * 366:
        return "> 1 y"
    size, unit = next((each for each in _SECONDS if seconds >= each[0]), _SECONDS[-1])
    return f"{seconds // size:.0f} {unit}"


def _state(row: RunRow) -> str:
    if row.silent_s is not None:
        return f"no sign {ago(0.0, row.silent_s)}"
    return row.state.replace("_", " ")


def _taken(row: RunRow) -> str:
    return fmt.duration(row.seconds_at(time.time()), aligned=True)


def _rate(row: RunRow) -> str:
    rate = row.rate
    return fmt.UNKNOWN if rate is None else f"{rate:,.0f}" if rate >= 100 else fmt.figure(rate)


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _best(row: RunRow) -> str:
    """Return the best value with its metric, of which the name is cut and never the figure."""
    name, _, figure = row.best_words.partition(" ")
    return f"{Content(name).truncate(_BEST - 2 - len(figure), ellipsis=True).plain} {figure}".strip()


_BEST = 15
_COLUMNS = (
    _Column("state", 15, lambda row: _state(row), leave=6),
    _Column("task", 15, lambda row: row.task or fmt.UNKNOWN, leave=7),
    _Column("model", 12, lambda row: row.model or fmt.UNKNOWN, leave=2, most=24),
    _Column("data", 12, lambda row: _last_part(row.data) or fmt.UNKNOWN, leave=4, most=24),
    _Column("prec.", 6, lambda row: row.precision or fmt.UNKNOWN, leave=3),
    _Column("best", _BEST, _best, right=True),
    _Column("images/s", 9, _rate, right=True, leave=1),
    _Column("time", 12, _taken, right=True, leave=5),
    _Column("age", 8, lambda row: ago(row.started), right=True),
)
_FEW = (
    _Column("state", 14, lambda row: _state(row), leave=1),
    _Column("model", 11, lambda row: row.model or fmt.UNKNOWN, leave=2, most=24),
    _Column("data", 10, lambda row: _last_part(row.data) or fmt.UNKNOWN, leave=3, most=24),
    _Column("best", _BEST, _best, right=True),
    _Column("age", 7, lambda row: ago(row.started), right=True),
)
"""The columns of the newest runs on the first screen."""
_HEAD = 4
"""Cells of the number of a marked run and of the sign of its state."""


Layout = tuple[Sequence[_Column], int]
"""The columns beside the name, and the cells of the name."""


def laid_out(width: int, among: Sequence[_Column] = _COLUMNS, rows: Sequence[RunRow] = ()) -> Layout:
    """Return the columns that fit into `width` cells; those for words of any length fit these rows."""
    least = _LEAST_NAME
    if among is not _COLUMNS:  # lesser columns give way to the names
        longest = max((cell_len(unstamped(clean(row.name, 200))) for row in rows), default=0)
        left = width - _HEAD - sum(column.width for column in among if column.leave < 2)
        least = max(_LEAST_OF_FEW, min(longest + 1, least, left))
    columns = fmt.fitting(among, width - _HEAD - least)
    left = width - _HEAD - sum(each.width for each in columns)
    for at, column in enumerate(columns):
        longest = max((cell_len(clean(column.words(row), 200)) for row in rows if column.most), default=0)
        more = max(0, min(min(longest + 1, column.most) - column.width, left - least))
        columns[at] = replace(column, width=column.width + more)
        left -= more
    return columns, max(8, min(left, _MOST_NAME))


def heading(layout: Layout, order: str = "") -> Content:
    """Return the line of headings; that of the order stands out."""
    columns, name = layout
    titles = [("name", fit("name", name)), *((each.title, each.fit(each.title)) for each in columns)]
    cells = (text.stylize("$text-accent" if title == order else "$quiet") for title, text in titles)
    return Content.assemble(" " * _HEAD, *cells)


def run_line(row: RunRow, layout: Layout, number: int | None = None, *, is_pinned: bool = False) -> Content:
    """Return the line of a run.

    Args:
        row: The run.
        layout: The columns of the list.
        number: Its number among the marked runs, in the colour of its curve; None: not marked.
        is_pinned: Whether it is drawn behind the live charts.
    """
    columns, name = layout
    needs_look = row.is_doubtful or row.silent_s is not None
    sign, tone = _DOUBTFUL if needs_look else _SIGNS.get(row.state, _BAD)
    pin = "○" if is_pinned else " "
    mark = (f" {pin}", "") if number is None else (f"{number}{pin}", f"bold $series-{number}")
    words = fit(_name(row.name, name - 1), name - 1).stylize("bold").pad_right(1)
    cells = [each.fit(each.words(row)).stylize(tone if each.title == "state" else "") for each in columns]
    return Content.assemble(mark, (f"{sign} ", tone), words, *cells)


def _name(name: str, room: int) -> str:
    """Return the name, without the time of its start where few have room for it: the age tells it, too."""
    name = clean(name, 200)
    return name if room >= _WITH_STAMP - 1 and len(name) <= room else unstamped(name)


def summary_words(rows: Sequence[RunRow]) -> str:
    """Count the runs, and those that are training or have failed: `12 runs · 1 training · 2 failed`."""
    training = sum(row.state == RUNNING for row in rows)
    silent = sum(row.silent_s is not None for row in rows)
    failed = sum(row.state not in _SIGNS for row in rows)
    crashed = sum(row.state == CRASHED for row in rows)
    words = [fmt.counted(len(rows), "run")]
    words += [f"{training - silent:,} training"] if training > silent else []
    words += [f"{silent:,} without a sign"] if silent else []
    words += [f"{failed - crashed:,} failed"] if failed > crashed else []
    return " · ".join([*words, *([f"{crashed:,} crashed"] if crashed else [])])


def differing_words(keys: Collection[str], runs: int, width: int) -> str:
    """Name the settings that differ among runs in `width` cells: `these differ: lr, mode and 3 more`."""
    if runs < 2:
        return ""
    if not keys:
        return "all have the same settings"
    names = list(dict.fromkeys(clean(setting_words(key), 40) for key in keys))
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown:,} more" if shown < len(names) else ""
        words = f"these differ: {', '.join(names[:shown])}{more}"
        if len(words) <= width:
            return words
    return f"{fmt.counted(len(names), 'setting')} differ"


# The list of runs with a cursor
# ------------------------------


MOST_PINNED = 2
"""Largest number of runs behind the live charts, which are told apart by their dashes."""

_PINNED: WeakKeyDictionary[App[Any], list[Path]] = WeakKeyDictionary()


def pinned_runs(app: App[Any]) -> list[Path]:
    """Return the runs that a program draws behind its live charts, by absolute paths, the first pinned first.

    Those of the start before are there again, but for runs that are gone.
    """
    if app not in _PINNED:
        runs = [Path(each) for each in load_list("pinned")]
        _PINNED[app] = [run for run in runs if run.is_dir()][:MOST_PINNED]
    return _PINNED[app]


def keep_pinned(app: App[Any]) -> None:
    """Keep these runs for the next start."""
    save_last({"pinned": [str(run) for run in pinned_runs(app)]})


class RunTable(Vertical):
    """Runs under their headings; the cursor stays on its run when others come, go or are sorted."""

    DEFAULT_CSS = """
    RunTable {
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
        &:focus-within { border: round $accent; border-title-color: $text-accent; }
        #headings { height: 1; padding: 0 1; text-wrap: nowrap; }
        KeyedList, KeyedList:focus { border: none; }
    }
    """

    columns: Sequence[_Column] = _COLUMNS

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: Sequence[RunRow] = ()
        self._marked: Mapping[Path, int] = {}
        self._order = ""

    def compose(self) -> ComposeResult:
        """Lay out headings and lines."""
        yield Static(id="headings", markup=False)
        yield KeyedList(id="lines", markup=False)

    @property
    def chosen(self) -> RunRow | None:
        """The run under the cursor."""
        name = self.query_one(KeyedList).highlighted_id
        return next((row for row in self._rows if row.name == name), None)

    def show(
        self, rows: Sequence[RunRow], marked: Mapping[Path, int], order: str, *, keeps_place: bool = False
    ) -> None:
        """Show runs.

        Args:
            rows: The runs.
            marked: The numbers of those that are marked.
            order: Title of the column by which they are sorted.
            keeps_place: Leave the cursor at its place if its run is gone; else it goes to the first one.
        """
        self._rows = rows
        self._marked = marked
        self._order = order
        self._draw(keeps_place)

    def choose(self, run: Path) -> None:
        """Put the cursor on a run, if it is shown."""
        listed = self.query_one(KeyedList)
        if run.name in [option.id for option in listed.options]:
            listed.highlighted = listed.get_option_index(run.name)

    def _draw(self, keeps_place: bool = False) -> None:
        width = self.content_size.width - 3  # padding, and the scrollbar
        if width <= 0:
            return
        layout = laid_out(width, self.columns, self._rows)
        self.query_one("#headings", Static).update(self._heading(layout))
        pinned, lines = pinned_runs(self.app), []
        for row in self._rows:
            number = self._marked.get(row.path)
            line = run_line(row, layout, number, is_pinned=row.path.absolute() in pinned)
            lines.append(Option(line, id=row.name))
        self.query_one(KeyedList).replace(lines, keeps_place=keeps_place)

    def _heading(self, layout: Layout) -> Content:
        return heading(layout, self._order)

    def on_resize(self) -> None:
        """Lay the lines out in the new width."""
        self._draw()


# The newest runs, on the first screen
# ------------------------------------

_MOST_DENSE = 4
"""Lines up to which none is left blank."""


class RecentRuns(RunTable):
    """The newest runs, with a cursor once it has the focus; without runs, how data of one's own may lie.

    Args:
        keymap: The user's keys.
    """

    BINDINGS = bindings("newest")
    DEFAULT_CSS = """
    RecentRuns.-empty {
        #headings { height: 1fr; }
        KeyedList { display: none; }
    }
    """
    columns = _FEW
    most = 30
    """Number of runs, of which those scroll that have no room."""

    async def action_open_run(self) -> None:
        """Open the run under the cursor."""
        await self.run_action("screen.open_run")

    async def action_next(self, by: int) -> None:
        """Leave the list for the next part of the screen."""
        await self.run_action(f"screen.next({by})")

    def __init__(self, keymap: Mapping[str, str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        key = next(key for key in KEYS if key.id == "app.runs")
        self.border_subtitle = Content(f"{display(key, keymap)} all runs")
        self._is_read = False

    @property
    def is_empty(self) -> bool:
        """Whether there are no runs to show."""
        return not self._rows

    def show_newest(self, rows: Sequence[RunRow]) -> None:
        """Show the newest of these runs."""
        self._is_read = True
        self.set_class(not rows, "-empty")
        self.border_title = Content(f"recent runs · {summary_words(rows)}" if rows else "recent runs")
        self.show(rows[: self.most], {}, "")

    def _heading(self, layout: Layout) -> Content:
        if self._rows:
            return super()._heading(layout)
        if not self._is_read:
            return Content.styled("reading the runs …", "$quiet")
        lines = [Content(NO_RUNS), Content(""), *pair_lines(DATA, self.content_size.width - 2)]
        height = self.content_size.height
        return Content("\n").join(line for line in lines if line or height > _MOST_DENSE)
