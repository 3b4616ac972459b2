"""The chart widget, which repaints only changed lines."""

from collections.abc import Sequence
from dataclasses import replace

from rich.segment import Segment
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from mptui.runs.view.history import History
from mptui.runs.view.view_state import Mark
from mptui.tui.keys.bindings import bindings
from mptui.tui.themes import style_on
from mptui.tui.widgets.chart.canvas import Mode
from mptui.tui.widgets.chart.cursor import moved, nearest
from mptui.tui.widgets.chart.curve_shape import Series, StepWindow
from mptui.tui.widgets.chart.plot import GUTTER, PARTS, Drawing, Planned, Plot, Run

PAN = 0.2
"""Share of the shown steps that a turn of the wheel moves."""

_STYLES = {
    **{part: f"${part}" for part in PARTS if part.startswith("series-")},
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
    """

    BINDINGS = bindings("chart")

    class Pointed(Message):
        """The user wants to see everything at this step."""

        def __init__(self, step: float) -> None:
            super().__init__()
            self.step = step

    class Zoomed(Message):
        """The user wants to see fewer steps around `step`, or more."""

        def __init__(self, step: float, closer: bool) -> None:
            super().__init__()
            self.step, self.closer = step, closer

    class Panned(Message):
        """The user wants to see later steps by a share of those shown, or earlier ones if it is negative."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, *, mode: Mode = "braille", id: str | None = None) -> None:
        super().__init__(id=id)
        self._plot = Plot((), mode=mode)
        self._pinned: float | None = None
        self._fingerprint: object = None
        self._title = ""
        self._rows: list[list[Run]] = []
        self._strips: dict[int, Strip] = {}
        self.drawn = 0
        """Number of frames drawn so far."""

    def entitle(self, name: str) -> None:
        """Set the title, if it differs."""
        if name != self._title:
            self._title = name
            self.border_title = Content(name)

    def show(
        self,
        series: Sequence[Series],
        *,
        marks: Sequence[Mark] = (),
        skips: History | None = None,
        best: tuple[int, float] | None = None,
        percent: bool = False,
        from_zero: bool = False,
        planned: Planned = (),
    ) -> None:
        """Draw series with marks and `best` as (step, value); `percent` is for fractions of 1."""
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

    def toggle_smoothing(self) -> None:
        """Toggle exponential smoothing of noisy curves; their values stay behind them as a band."""
        self._change(smooth=not self._plot.smooth)
        self._say_modes()

    def _say_modes(self) -> None:
        plot = self._plot
        modes = (
            ("log axis", plot.log_y),
            ("not smoothed", not plot.smooth),
            (_window_words(plot.window), plot.window is not None),
        )
        self.border_subtitle = " · ".join(word for word, on in modes if on)

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
            strip = self._strips[y] = Strip(segments, self.size.width)
        return strip

    def notify_style_update(self) -> None:
        """Apply the colours of another theme."""
        super().notify_style_update()
        self._strips.clear()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self._redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Put the cursor under the mouse."""
        offset = event.get_content_offset(self)
        cell = offset.x - GUTTER if offset else -1
        here = nearest(self._plot, cell, self._cells) if cell >= 0 else None
        self._change(cursor=self._pinned if here is None else here)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the mouse; with shift, pan to earlier steps."""
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
        first, last = self._plot.steps
        offset = event.get_content_offset(self)
        share = (offset.x - GUTTER + 0.5) / self._cells if offset else 1.0
        self.post_message(self.Zoomed(first + min(max(share, 0.0), 1.0) * (last - first), way < 0))

    def _pan(self, event: events.MouseEvent, way: int) -> None:
        event.stop()
        self.post_message(self.Panned(way * PAN))

    def on_leave(self) -> None:
        """Put the cursor back when the mouse leaves."""
        self._change(cursor=self._pinned)

    def on_click(self) -> None:
        """Point at the step under the mouse."""
        if self._plot.cursor is not None:
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
