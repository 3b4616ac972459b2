"""The chart widget, which repaints only changed lines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from mptui.runs.view.metric_history import History
from mptui.runs.view.view_state import Mark
from mptui.tui.keys.bindings import bindings
from mptui.tui.widgets.chart.canvas import Mode
from mptui.tui.widgets.chart.cursor import moved, nearest
from mptui.tui.widgets.chart.plot import GUTTER, PARTS, Drawing, Plot, Run, Series


class Chart(Widget, can_focus=True):
    """Curves of one or more metrics over the steps of a run.

    `show` sets the content. Unchanged content costs only a comparison; changed content repaints the lines
    that differ.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"chart--{part}" for part in PARTS}
    BINDINGS = bindings("chart")
    DEFAULT_CSS = """
    Chart {
        .chart--series-1 { color: $series-1; }
        .chart--series-2 { color: $series-2; }
        .chart--series-3 { color: $series-3; }
        .chart--series-4 { color: $series-4; }
        .chart--series-5 { color: $series-5; }
        .chart--series-6 { color: $series-6; }
        .chart--raw { color: $series-raw; }
        .chart--axis { color: $quiet; }
        .chart--mark { color: $text-accent; }
        .chart--warn { color: $text-warning; }
        .chart--bad { color: $text-error; text-style: bold; }
        .chart--best { color: $text-success; text-style: bold; }
        .chart--cursor { color: $text-disabled; }
        .chart--text { color: $text; }
    }
    """

    def __init__(self, *, mode: Mode = "braille", id: str | None = None) -> None:
        super().__init__(id=id)
        self._plot = Plot((), mode=mode)
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
    ) -> None:
        """Draw series with marks and `best` as (step, value); `percent` is for fractions of 1."""
        self._change(series=tuple(series), marks=tuple(marks), skips=skips, best=best, percent=percent)

    def toggle_log(self) -> None:
        """Toggle the value axis between linear and logarithmic."""
        self._change(log_y=not self._plot.log_y)
        self._say_modes()

    def toggle_smoothing(self) -> None:
        """Toggle exponential smoothing; the raw curve stays behind it, dimmed."""
        self._change(smooth=not self._plot.smooth)
        self._say_modes()

    def _say_modes(self) -> None:
        modes = ("log axis", self._plot.log_y), ("smoothed", self._plot.smooth)
        self.border_subtitle = " · ".join(word for word, on in modes if on)

    def _change(self, **changes: object) -> None:
        self._plot = replace(self._plot, **changes)  # type: ignore[arg-type]
        self._redraw()

    def _redraw(self) -> None:
        plot = self._plot
        versions = tuple((s.label, id(s.history), s.history.version) for s in plot.series)
        skips = plot.skips.version if plot.skips is not None else 0
        rest = (plot.marks, skips, plot.best, plot.percent, plot.log_y, plot.smooth, plot.mode, plot.cursor)
        fingerprint = (versions, rest, self.size)
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
            segments = [Segment(text, self._style(part)) for text, part in self._rows[y]]
            strip = self._strips[y] = Strip(segments, self.size.width)
        return strip

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"chart--{part}")

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
        self._change(cursor=nearest(self._plot.series, cell, self._cells) if cell >= 0 else None)

    def on_leave(self) -> None:
        """Remove the cursor when the mouse leaves."""
        self.remove_cursor()

    def on_blur(self) -> None:
        """Remove the cursor when the focus is lost."""
        self.remove_cursor()

    def action_cursor(self, columns: int) -> None:
        """Move the cursor by `columns` with values; without a cursor, place it at the latest step."""
        self._change(cursor=moved(self._plot.series, self._plot.cursor, columns, self._cells))

    def remove_cursor(self) -> bool:
        """Remove the cursor; return whether there was one."""
        shown = self._plot.cursor is not None
        self._change(cursor=None)
        return shown

    @property
    def _cells(self) -> int:
        """Number of columns of the plot area."""
        return max(1, self.size.width - GUTTER)
