"""The chart widget: several together, zoom and cursor; only changed lines are painted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from typing_extensions import Self, override

from mptui.runs.listing.difference import Curves
from mptui.runs.view.history import History
from mptui.runs.view.numbers import (
    Number,
    best_word,
    fitted,
    metric_and_role,
    named,
    numbers_of,
    primary_chart,
)
from mptui.runs.view.run_view import RunView
from mptui.runs.view.state import Mark
from mptui.runs.view.words import (
    DEVICE,
    FROM_ZERO,
    GRADIENT_NORM,
    LOSS,
    LR,
    TRAIN,
    VALIDATION,
    is_noisy,
    is_percent,
)
from mptui.tui.keys import bindings
from mptui.tui.themes import style_on
from mptui.tui.widgets.basics import words_of_numbers
from mptui.tui.widgets.plot import (
    ABANDONED,
    GUTTER,
    PARTS,
    ROLES,
    Drawing,
    Mode,
    Planned,
    Plot,
    Run,
    Series,
    StepWindow,
)

# The chart widget, which repaints only changed lines
# ---------------------------------------------------

PAN = 0.2
"""Share of the shown steps that a turn of the wheel moves."""

_STYLES = {
    **{part: f"${part}" for part in PARTS if part.startswith("series-")},
    **{role: f"${role}-curve" for role in ROLES},
    "raw": "$series-raw",
    "axis": "$quiet",
    "mark": "$text-accent",
    "warn": "$text-warning",
    "bad": "bold $text-error",
    "best": "bold $text-success",
    "cursor": "$text-disabled",
    "text": "",
}


class Chart(Widget, can_focus=True):
    """Curves of one or more metrics over the steps of a run.

    `show` sets the content. Unchanged content costs only a comparison; changed content repaints the lines
    that differ.

    Args:
        mode: Of which characters it is drawn.
        fitted: Whether its axis is fitted to the later values until the user wants all (`Plot.fitted`).
        id: The id of the widget.
    """

    BINDINGS = bindings("chart")
    DEFAULT_CSS = """
    Chart {
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
        padding: 0 1;
        &:focus { border: round $accent; border-title-color: $text-accent; }
    }
    """

    class Pointed(Message):
        """The user wants to see everything at this step."""

        def __init__(self, step: float) -> None:
            super().__init__()
            self.step = step

    class Zoomed(Message):
        """The user wants to see fewer steps, or more."""

        def __init__(self, closer: bool) -> None:
            super().__init__()
            self.closer = closer

    class Whole(Message):
        """The user wants to see all steps."""

    class Panned(Message):
        """The user wants to see later steps by a share of those shown, or earlier ones if it is negative."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, *, mode: Mode = "braille", fitted: bool = False, id: str | None = None) -> None:
        self._is_titled = False
        super().__init__(id=id)
        self._plot = Plot((), mode=mode, fitted=fitted)
        self._is_fitted = fitted
        self._noted = ""
        self._pinned: float | None = None
        self._fingerprint: object = None
        self._title: tuple[str, Sequence[Number]] = ("", ())
        self._rows: list[list[Run]] = []
        self._strips: dict[int, Strip] = {}
        self.drawn = 0
        """Number of frames drawn so far."""

    def entitle(self, name: str, numbers: Sequence[Number] = ()) -> None:
        """Set the title, with as many of the numbers of now as fit, if it differs."""
        if (name, numbers) != self._title:
            self._title = name, numbers
            self._write_title()

    def _write_title(self) -> None:
        name, numbers = self._title
        room = self.size.width - 2 - cell_len(name)  # beside a title there is a cell of the border
        first = [replace(number, before="  ") for number in numbers[:1]]
        self._is_titled = True
        self.border_title = Content.assemble(name, words_of_numbers(fitted([*first, *numbers[1:]], room)))
        self._is_titled = False

    @override
    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Repaint the line of the title alone if it is all that changes: Textual would repaint each line."""
        if self._is_titled:
            regions = (Region(-self.gutter.left, -self.gutter.top, self.outer_size.width, 1),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def show(
        self,
        series: Sequence[Series],
        *,
        marks: Sequence[Mark] = (),
        skips: History | None = None,
        best: tuple[str, int, float] | None = None,
        percent: bool = False,
        from_zero: bool = False,
        planned: Planned = (),
    ) -> None:
        """Draw series with marks and `best` as (word, step, value); `percent` is for fractions of 1."""
        self._change(
            series=tuple(series),
            marks=tuple(marks),
            skips=skips,
            best=best,
            percent=percent,
            from_zero=from_zero,
            planned=tuple(planned),
            signed=self.app.no_color and self._plot.mode != "ascii",
        )

    def look_at(self, window: StepWindow | None) -> None:
        """Show these steps; None: the whole run."""
        self._change(window=window)
        self._say_modes()

    def toggle_log(self) -> None:
        """Toggle the value axis between linear and logarithmic."""
        self._change(log_y=not self._plot.log_y)
        self._say_modes()

    def toggle_fit(self) -> None:
        """Toggle between an axis of all values and one that is fitted to the later ones."""
        self._change(fitted=not self._plot.fitted)
        self._say_modes()

    def toggle_smoothing(self) -> None:
        """Toggle exponential smoothing of noisy curves; their values stay behind them as a band."""
        self._change(smooth=not self._plot.smooth)
        self._say_modes()

    def note(self, words: str) -> None:
        """Say something at the lower edge, before how the chart is drawn."""
        if words != self._noted:
            self._noted = words
            self._say_modes()

    def _say_modes(self) -> None:
        plot = self._plot
        modes = (
            (self._noted, bool(self._noted)),
            ("log axis", plot.log_y),
            ("all values", plot.fitted != self._is_fitted),
            ("not smoothed", not plot.smooth),
            (_window_words(plot.window), plot.window is not None),
        )
        self.border_subtitle = Content(" · ".join(word for word, on in modes if on))

    def _change(self, **changes: object) -> None:
        self._plot = replace(self._plot, **changes)  # type: ignore[arg-type]
        self._redraw()

    def _redraw(self) -> None:
        plot = self._plot
        versions = tuple((s.label, id(s.history), s.history.version) for s in plot.series)
        skips = plot.skips.version if plot.skips is not None else 0
        rest = replace(plot, series=(), skips=None)
        fingerprint = (versions, skips, rest, self.size)
        if fingerprint == self._fingerprint or not self.size.area:
            return
        self._fingerprint = fingerprint
        self.drawn += 1
        self._adopt(Drawing(plot, self.size.width, self.size.height).rows())

    def _adopt(self, rows: list[list[Run]]) -> None:
        """Store the new rows, and repaint only those that differ."""
        before, self._rows = self._rows, rows
        if len(rows) != len(before):
            self._strips.clear()
            self.refresh()
            return
        changed = [y for y, row in enumerate(rows) if row != before[y]]
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """Return line `y` of the last frame."""
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strips.get(y)
        if strip is None:
            segments = [Segment(text, style_on(self, _STYLES[part])) for text, part in self._rows[y]]
            strip = self._strips[y] = Strip(segments)  # as wide as it was laid out, so that it is cut to fit
        return strip

    def notify_style_update(self) -> None:
        """Apply the colours of another theme."""
        super().notify_style_update()
        self._strips.clear()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self._write_title()
        self._redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Put the cursor under the mouse."""
        offset = event.get_content_offset(self)
        cell = offset.x - GUTTER if offset else -1
        here = nearest(self._plot, cell, self._cells) if cell >= 0 else None
        self._change(cursor=self._pinned if here is None else here)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in; with shift, pan to earlier steps."""
        self._scroll(event, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out; with shift, pan to later steps."""
        self._scroll(event, 1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        """Pan to earlier steps."""
        self._pan(event, -1)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        """Pan to later steps."""
        self._pan(event, 1)

    def _scroll(self, event: events.MouseEvent, way: int) -> None:
        if event.shift:
            self._pan(event, way)
            return
        event.stop()
        self.post_message(self.Zoomed(way < 0))

    def _pan(self, event: events.MouseEvent, way: int) -> None:
        event.stop()
        self.post_message(self.Panned(way * PAN))

    def on_leave(self) -> None:
        """Put the cursor back when the mouse leaves."""
        self._change(cursor=self._pinned)

    def on_click(self, event: events.Click) -> None:
        """Point at the step under the mouse; the second click shows all steps."""
        if event.chain == 2:
            self.post_message(self.Whole())
        elif self._plot.cursor is not None:
            self.post_message(self.Pointed(self._plot.cursor))

    def action_cursor(self, columns: int) -> None:
        """Point `columns` with values further; without a cursor, at the latest step."""
        step = moved(self._plot, self._plot.cursor, columns, self._cells)
        if step is not None:
            self.pin(step)
            self.post_message(self.Pointed(step))

    def pin(self, step: float | None) -> None:
        """Put the cursor at a step; None: remove it."""
        self._pinned = step
        self._change(cursor=step)

    def remove_cursor(self) -> bool:
        """Remove the cursor that keys have put; return whether there was one."""
        was_pinned = self._pinned is not None
        self.pin(None)
        return was_pinned

    @property
    def _cells(self) -> int:
        """Number of columns of the plot area."""
        return max(1, self.size.width - GUTTER)


def _window_words(window: StepWindow | None) -> str:
    """Describe a window: `last 2,000 steps`, `steps 4,000 to 6,000`."""
    if window is None:
        return ""
    if window.end is None:
        return f"last {window.span:,.0f} steps"
    return f"steps {max(0.0, window.end - window.span):,.0f} to {window.end:,.0f}"


# The charts of a screen, which show the same steps and have the same cursor
# --------------------------------------------------------------------------


def charts_of(view: RunView, words: str = "") -> list[str]:
    """Return the charts to draw, the most important first: those that `words` name, or all if they name none.

    Args:
        view: The run.
        words: Names and globs, with commas between them, such as `loss, top*`. A name of several words has
            all of them; each is part of the name of a chart or of one of its curves.
    """
    names = dict.fromkeys([LOSS, primary_chart(view), LR, GRADIENT_NORM, "speed", DEVICE, *view.histories])
    found = named_charts(view, words)
    return list(dict.fromkeys(name for each in found for name in names if name in each)) or list(names)


def named_charts(view: RunView, words: str) -> list[set[str]]:
    """Return for each of the names and globs the charts that have it; see `charts_of`."""
    texts = {chart: f"{chart} {' '.join(curves)}".lower() for chart, curves in view.histories.items()}
    wanted = [each.split() for each in words.lower().split(",") if each.strip()]
    return [
        {chart for chart, text in texts.items() if all(_has(text, part) for part in parts)}
        for parts in wanted
    ]


def _has(text: str, pattern: str) -> bool:
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(word, pattern) for word in text.split())
    return pattern in text


class ChartSet:
    """Charts by importance.

    Args:
        charts: The widgets, the most important first.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts = charts
        self._window: StepWindow | None = None
        self._pinned: float | None = None
        self._behind: Mapping[str, Curves] = {}
        self._drawn_behind: list[tuple[str, int]] = []
        self._shown: tuple[RunView, Mapping[int, str]] | None = None
        self.has_numbers = True
        """Whether the titles have the numbers of now."""

    def show(self, view: RunView, names: Mapping[int, str]) -> None:
        """Show the metrics of these names, by the number of their chart."""
        self._shown = view, names
        for number, name in names.items():
            chart = self._charts[number]
            numbers = numbers_of(view, name) if self.has_numbers else ()
            chart.entitle(named(view, name), numbers)
            behind = {word: curves.get(name, {}) for word, curves in self._behind.items()}
            _show(chart, view, name, behind, is_first=number == 0, has_numbers=self.has_numbers)

    def note(self, words: str) -> None:
        """Say in the first chart what has been chosen of all."""
        self._charts[0].note(words)

    def put_behind(self, behind: Mapping[str, Curves]) -> None:
        """Draw the curves of other runs, by the word for each, behind those of the same charts."""
        if [(word, id(curves)) for word, curves in behind.items()] != self._drawn_behind:
            self._drawn_behind = [(word, id(curves)) for word, curves in behind.items()]
            self._behind = dict(behind)
            if self._shown is not None:
                self.show(*self._shown)

    def zoom(self, last: float, closer: bool) -> None:
        """Show fewer or more of the steps to `last`, around the cursor if there is one."""
        self._look_at(zoomed(self._window, last, closer, self._pinned))

    def pan(self, last: float, share: float) -> None:
        """Show later steps by a share of those shown, or earlier ones if it is negative."""
        self._look_at(panned(self._window, last, share))

    def show_all_steps(self) -> None:
        """Show all steps."""
        self._look_at(None)

    def pin(self, step: float | None) -> None:
        """Put the cursor at a step, which keeps it while the axis grows; None: remove it."""
        self._pinned = step
        for chart in self._charts:
            chart.pin(step)

    def remove_cursor(self) -> bool:
        """Remove the cursor; return whether there was one."""
        self._pinned = None
        removed = [chart.remove_cursor() for chart in self._charts]
        return any(removed)

    def toggle_log(self) -> None:
        """Toggle the value axes between linear and logarithmic."""
        for chart in self._charts:
            chart.toggle_log()

    def toggle_fit(self) -> None:
        """Toggle between axes of all values and fitted ones."""
        for chart in self._charts:
            chart.toggle_fit()

    def toggle_smoothing(self) -> None:
        """Toggle smoothing of noisy curves."""
        for chart in self._charts:
            chart.toggle_smoothing()

    def _look_at(self, window: StepWindow | None) -> None:
        self._window = window
        for chart in self._charts:
            chart.look_at(window)


def _show(
    chart: Chart,
    view: RunView,
    name: str,
    behind: Mapping[str, Mapping[str, History]],
    *,
    is_first: bool,
    has_numbers: bool,
) -> None:
    histories, best = view.histories.get(name, {}), view.best.get(name)
    title, words = named(view, name), list(dict.fromkeys(metric_and_role(label)[0] for label in histories))
    curves = []
    for label, history in histories.items():
        word, role = metric_and_role(label)
        series = Series(
            role if role and word == title else label,
            history,
            words.index(word) > 0,
            is_noisy(name, label),
            role=DEVICE if name == DEVICE else role or TRAIN,
            points=role == VALIDATION,
            titled=has_numbers and len(histories) == 1,
        )
        curves.append(series)
    left = [
        Series(f"{label} abandoned", history.abandoned, noisy=is_noisy(name, label), behind=ABANDONED)
        for label, history in histories.items()
        if history.abandoned is not None
    ]
    others = [
        Series(f"{word}'s {label}", history, place % 2 == 1, is_noisy(name, label), behind=word)
        for place, (word, ghosts) in enumerate(behind.items())
        for label, history in ghosts.items()
    ]
    chart.show(
        [*curves, *left, *others],
        marks=tuple(view.marks) if is_first else (),
        skips=view.skips if is_first else None,
        best=None if best is None else (best_word(view, name), best.step, best.value),
        percent=is_percent(name),
        from_zero=name in FROM_ZERO,
        planned=[(step, rate) for step, rate in view.planned_lr] if name == LR else (),
    )


# Positions of a chart's cursor: steps for which a curve has a value, one per column
# ----------------------------------------------------------------------------------


def nearest(plot: Plot, cell: int, width: int) -> float | None:
    """Return the step nearest to column `cell` of `width`; None if no curve has a value."""
    steps, cells = _places(plot, width)
    return float(steps[np.abs(cells - cell).argmin()]) if steps.size else None


def moved(plot: Plot, cursor: float | None, columns: int, width: int) -> float | None:
    """Return the step `columns` positions after `cursor` (before, if negative); without one, the latest."""
    steps, _ = _places(plot, width)
    if not steps.size:
        return None
    place = steps.size - 1
    if cursor is not None:
        here = int(np.searchsorted(steps, cursor))
        # between two positions, e.g. after the axis has grown, the next one is the one to the right
        between = columns > 0 and (here == steps.size or steps[here] != cursor)
        place = min(max(here + columns - between, 0), steps.size - 1)
    return float(steps[place])


def _places(plot: Plot, width: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the last step of each column that has one, and these columns."""
    x0, x1 = plot.steps
    every = np.full((len(plot.own) + 1, width), np.nan)
    for row, each in zip(every, plot.own, strict=False):
        row[:] = each.history.steps(x0, x1, width)
    latest = np.fmax.reduce(every, axis=0)
    cells = np.flatnonzero(np.isfinite(latest))
    return latest[cells], cells


# Zoom and pan: the windows of steps that charts show
# ---------------------------------------------------

SMALLEST = 10
"""Smallest number of steps of a window."""

_ROUND = (1, 2, 5, 10)


def zoomed(
    window: StepWindow | None, last: float, closer: bool, centre: float | None = None
) -> StepWindow | None:
    """Return the next closer or wider window.

    Args:
        window: The window now.
        last: Last step of the run.
        closer: Whether to show fewer steps.
        centre: The step that keeps its place; None: the window keeps its end.
    """
    span = last if window is None else window.span
    rounder = _below(span) if closer else _above(span)
    if rounder >= last:
        return None
    rounder = max(SMALLEST, rounder)
    end = None if window is None else window.end
    if centre is not None:
        old_end = last if end is None else end
        end = centre + (old_end - centre) * rounder / span
    return placed(StepWindow(rounder, end), last)


def panned(window: StepWindow | None, last: float, share: float) -> StepWindow | None:
    """Return the window moved by a share of its span, to later steps if positive."""
    if window is None:
        return None
    end = last if window.end is None else window.end
    return placed(StepWindow(window.span, end + share * window.span), last)


def placed(window: StepWindow, last: float) -> StepWindow:
    """Return a window within the run; one that reaches the last step follows it."""
    if window.end is None or window.end >= last:
        return StepWindow(window.span)
    return StepWindow(window.span, round(max(window.end, window.span)))


def _below(span: float) -> float:
    """Return the largest round number (1, 2 or 5 times 10^n) of at most two thirds of `span`."""
    power = 10.0 ** math.floor(math.log10(max(span, SMALLEST)))
    return next(
        one * unit for unit in (power, power / 10) for one in reversed(_ROUND) if one * unit <= span * 2 / 3
    )


def _above(span: float) -> float:
    """Return the smallest round number that is more than `span`."""
    power = 10.0 ** math.floor(math.log10(max(span, SMALLEST)))
    return next(one * power for one in _ROUND if one * power > span)
