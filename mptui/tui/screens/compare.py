"""The comparison of runs: a curve of all over each other, and what differs between them."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option
from typing_extensions import override

from mptui import text as fmt
from mptui.errors import MptuiError
from mptui.registry.tasks import metric_word
from mptui.runs.listing.difference import STEPS, Curve, RunCurves, curves_of, difference, histories_of
from mptui.runs.listing.forks import fork_step
from mptui.runs.listing.rows import compare, figure_name, figure_texts, setting_words, unstamped, what_differs
from mptui.runs.view.history import History
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import is_noisy, is_percent, metric_words
from mptui.text import clean
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.screens.page import SearchedPage, SearchField, TooSmall, has_words
from mptui.tui.widgets.basics import KeyBar, KeyedList, TopLine, fit
from mptui.tui.widgets.chart import Chart
from mptui.tui.widgets.plot import ABANDONED, Mode, Series
from mptui.tui.widgets.run_list import differing_words
from mptui.tui.work import in_background

# The comparison of runs: a curve of all over each other, and what differs between them
# -------------------------------------------------------------------------------------

RENEW_S = 2.0

_NAME = 9
"""Cells of the first line beside what it says."""


class CompareScreen(SearchedPage):
    """Compares two to eight runs.

    Args:
        runs: Their directories.
        ascii_only: Draw in ASCII.
    """

    where = "compare"
    BINDINGS = bindings("compare")
    DEFAULT_CSS = """
    CompareScreen {
        Chart {
            height: 1fr;
            min-height: 8;
        }
        #heading { height: 1; padding: 0 2; text-wrap: nowrap; }
        KeyedList { height: 1fr; }
    }
    """

    def __init__(self, runs: Sequence[Path], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._runs = runs
        self._ascii_only = ascii_only
        self._read = RunCurves()
        self._views = dict[Path, RunView]()
        self._curve: Curve | None = None
        self._found: dict[str, Any] | None = None
        self._differing: dict[str, list[Any]] | None = None
        self._busy = False
        self._since: int | None = None
        self._words: list[str] = []
        self._top = TopLine()

    def compose(self) -> ComposeResult:
        """Lay out the curves, the differences and the keys."""
        mode: Mode = "ascii" if self._ascii_only else "braille"
        yield self._top
        yield Chart(mode=mode, fitted=True, id="curves")
        yield Static(Content.styled("reading settings and figures …", "$quiet"), id="heading", markup=False)
        yield KeyedList(id="differences", markup=False)
        yield SearchField("words of a setting or of a figure")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Read the runs, again while they train."""
        self._top.show_message(Content.styled(f"reading {len(self._runs)} runs …", "$quiet"))
        self.query_one(KeyedList).focus()
        self._renew()
        self.set_interval(RENEW_S, self._renew)

    def _renew(self) -> None:
        """Read the runs, and show them; keys wait for the first time."""
        self.run_worker(self._read_runs(), group="rows" if self._views else KEYS_WAIT)

    async def _read_runs(self) -> None:
        if self._busy or not self.is_current:
            return
        self._busy = True
        try:
            self._since = await in_background(partial(fork_step, self._runs))
            self._views = await in_background(partial(self._read.read, self._runs))
            if self.is_running:
                self._draw()
            self._found = await in_background(partial(compare, self._runs))
            self._differing = what_differs(self._found)
        except MptuiError as error:
            self.notify(error.message, severity="warning", markup=False)
        finally:
            self._busy = False
        if self.is_running:
            self._say()
            self._list()

    def _say(self) -> None:
        """Say what differs, and what a fork has gained."""
        differing = self._differing
        if self._since is None or differing is None:
            told = f"comparing {len(self._runs)} runs"
            if self._found is not None and differing is not None:
                room = self.size.width - _NAME
                words = comparison_words(self._found, differing, room - len(f"{told}: "))
                told = f"{told}: {words}"
                if len(told) > room:
                    told = comparison_words(self._found, differing, room)
            self._top.show_message(Content.styled(told, "$quiet"))
        else:
            parent, fork = (self._views.get(run) for run in self._runs)
            room = self.size.width - _NAME
            words = difference(parent, fork, self._since, differing).within(room) if parent and fork else ""
            told = words or f"waiting for the first {STEPS} steps of the fork"
            self._top.show_message(Content.styled(told, "$text-accent" if words else "$quiet"))

    def _draw(self) -> None:
        self._say()
        curves = curves_of(list(self._views.values()))
        if self._curve not in curves:
            self._curve = curves[0] if curves else None
        if self._curve is not None:
            show_curve(self.query_one(Chart), self._runs, self._views, self._curve, since=self._since or 0)

    def _list(self) -> None:
        listed = self.query_one(KeyedList)
        width = listed.content_region.width - 3  # padding, and the scrollbar
        if self._found is not None and width > 0:
            self.query_one("#heading", Static).update(difference_heading(self._runs, width))
            lines = [
                Option(line, id=key)
                for key, line in difference_lines(self._found, width)
                if has_words(f"{key} {setting_words(key)} {figure_name(key)}", self._words)
            ]
            none = Content.styled("nothing has these words: esc shows all", "$quiet")
            listed.replace(lines if lines or not self._words else [Option(none, id="none.", disabled=True)])

    def on_resize(self) -> None:
        """Lay the differences out in the new width."""
        self._say()
        self.call_after_refresh(self._list)

    def searched(self, words: list[str]) -> None:
        """List the settings and figures with these words."""
        self._words = words
        told = f"/{clean(' '.join(words), 40)}" if words else ""
        self.query_one(KeyedList).border_subtitle = Content(told)
        self._list()

    def go_to_match(self, way: int) -> None:
        """Go to the next line."""
        self.query_one(KeyedList).action_next(way)

    @override
    def to_list(self) -> None:
        self.query_one(KeyedList).focus()

    def action_metric(self) -> None:
        """Draw the next curve that a run has."""
        curves = curves_of(list(self._views.values()))
        if curves and self._curve in curves:
            self._curve = curves[(curves.index(self._curve) + 1) % len(curves)]
            self._draw()

    def action_end(self, way: int) -> None:
        """Put the cursor of the chart at the last step, or at the first."""
        chart = self.query_one(Chart)
        for columns in (way, way * chart.size.width):  # the first move begins at the last step
            chart.action_cursor(columns)

    def action_log_axis(self) -> None:
        """Toggle the logarithmic value axis."""
        self.query_one(Chart).toggle_log()

    def action_all_values(self) -> None:
        """Toggle between a value axis of all values and a fitted one."""
        self.query_one(Chart).toggle_fit()

    def action_smoothing(self) -> None:
        """Toggle smoothing of the curves."""
        self.query_one(Chart).toggle_smoothing()

    def back(self) -> None:
        """End the search, remove the cursor of the chart, or close."""
        if not self.end_search() and not self.query_one(Chart).remove_cursor():
            self.dismiss("back")

    def leave(self) -> None:
        """Quit as the screen below does."""
        self.dismiss("leave")


# Lines of what differs between runs: a setting or figure each, with a column for each run
# ----------------------------------------------------------------------------------------

_FIRST = ("status", "best_metric", "best_value", "samples_per_second", "total_s")
"""Figures above the settings, which explain them."""

_KEY, _LEAST_KEY, _TYPED_KEY = 30, 14, 52
"""Cells of the words of a line: at most, at least, and with the key of a setting beside them."""

_LEAST, _MOST, _WIDEST = 7, 30, 44
"""Cells of a column of values: of a figure, of most values, and at most; runs without room have none."""
_WITH_NAME = 12
"""Cells of a column from which its heading has the name of the run besides its number."""


def comparison_words(found: Mapping[str, Any], differing: Collection[str], width: int) -> str:
    """Say the best of each run, in their order, and what differs: `top-1 75.0 %, 50 %; these differ: lr`."""
    figures, unknown = found["figures"], [None] * len(found["runs"])
    names = {name for name in figures.get("best_metric", unknown) if name is not None}
    best = figures.get("best_value", unknown)
    result = ""
    if len(names) == 1:
        (name,) = names
        first, *others = [fmt.UNKNOWN if value is None else metric_words({name: value})[0] for value in best]
        word = f"{metric_word(name)} "
        result = "; ".join([", ".join([first, *(each.removeprefix(word) for each in others)]), ""])
    return result + differing_words(differing, len(best), width - len(result))


def _widths(runs: int, width: int) -> tuple[int, int]:
    """Return the cells of the keys and of a column."""
    key = max(_LEAST_KEY, min(_KEY, width - (_WITH_NAME + 1) * runs))
    key = max(key, min(_TYPED_KEY, width - _MOST * runs))
    return key, max(_LEAST, min(_WIDEST, (width - key) // runs))


def difference_heading(runs: Sequence[Path], width: int) -> Content:
    """Return the line with the numbers and names of the runs, in the colours of their curves.

    Runs without room for a column are counted at its beginning.
    """
    key, column = _widths(len(runs), width)
    longest = max(len(run.name) for run in runs) + len("8 ")
    names = [
        "" if column < _WITH_NAME else run.name if longest < column else unstamped(run.name) for run in runs
    ]
    cells = [
        _right(f"{number} {name}".rstrip(), column).stylize(f"bold $series-{number}")
        for number, name in enumerate(names, 1)
    ]
    room = (width - key) // column
    hidden = len(runs) - room
    words = f"{hidden} {'run' if hidden == 1 else 'runs'} hidden" if hidden > 0 else ""
    return Content.assemble((f"{words:<{key}}", "$quiet"), *cells[:room])


def difference_lines(found: dict[str, Any], width: int) -> list[tuple[str, Content]]:
    """Return (id, line) of each thing that differs and each figure, from `mptui.runs.listing.rows`."""
    figures = found["figures"]
    first = {name: figures[name] for name in _FIRST if name in figures}
    rows = [(name, values, False) for name, values in first.items()]
    rows += [(name, values, True) for name, values in what_differs(found).items() if name not in figures]
    rows += [(name, values, False) for name, values in figures.items() if name not in first]
    return [
        (name, _line(name, values, figure_texts(found, name, values), width, is_setting))
        for name, values, is_setting in rows
        if any(value is not None for value in values)
    ]


def _line(name: str, values: Sequence[object], texts: Sequence[str], width: int, is_setting: bool) -> Content:
    key, column = _widths(len(values), width)
    called = clean(setting_words(name) if is_setting else figure_name(name), 80)
    tone = "$text-accent" if is_setting else "$quiet"
    words = Content.styled(called, tone)
    typed = clean(name, 80)
    if is_setting and typed != called and len(f"{called}  {typed}") < key:
        words = Content.assemble(words, f"  {typed}")
    words = fit(words, key - 1).pad_right(1)
    same = all(value == values[0] for value in values)
    cells = Content("").join(_right(text, column) for text in texts[: (width - key) // column])
    return Content.assemble(words.stylize_before("$quiet"), cells.stylize("$quiet" if same else ""))


def _right(text: str, width: int) -> Content:
    return fit(clean(text, 100), width - 1, right=True).pad_left(1)


# Draws a curve of several runs over each other
# ---------------------------------------------


def show_curve(
    chart: Chart, runs: Sequence[Path], views: Mapping[Path, RunView], curve: Curve, *, since: int = 0
) -> None:
    """Draw a curve of each run from step `since` on, in the colour of its number."""
    found = {run: history.since(since) for run, history in histories_of(views, curve).items()}
    name, label = curve
    chart.entitle(f"{name} · {label}" if label and label != name else name)
    titles = [views[run].title_of(name, run.name) if run in views else run.name for run in runs]
    labels = [f"{number} {title}" for number, title in enumerate(titles, 1)]
    if len(runs) == 1:
        labels = titles
    elif sum(map(len, labels)) + 8 * len(labels) > chart.size.width:
        labels = [str(number) for number in range(1, len(runs) + 1)]
    series = [
        Series(clean(text, 60), found.get(run) or History(2), noisy=is_noisy(name, label))
        for run, text in zip(runs, labels, strict=True)
    ]
    left = [history.abandoned for history in found.values() if history.abandoned is not None]
    series += [Series(ABANDONED, history, behind=ABANDONED) for history in left if history.end_x > since]
    chart.show(series, percent=is_percent(name))
