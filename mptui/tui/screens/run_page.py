"""Base class of the live screen: charts, timeline and panels of a run, now or at an earlier moment."""

import time
from typing import ClassVar

from textual import on, work

from mptui.errors import MptuiError
from mptui.runs.listing.fork_parent import ForkWords, ParentReader, fork_words
from mptui.runs.planning.profile_diff import RunPosition
from mptui.runs.replay.past_view import completed, folded_until
from mptui.runs.view.history import RunMoment
from mptui.runs.view.run_view import RunView
from mptui.tui.screens.page import Page
from mptui.tui.sources.source import RunSource
from mptui.tui.threads import in_background
from mptui.tui.widgets.chart.canvas import Mode
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.chart.chart_set import ChartSet
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.ribbon import Ribbon
from mptui.tui.widgets.panel import Panel

PARENT_S = 2.0
"""Seconds between two looks at the parent of a fork."""


class RunPage(Page):
    """Shows a run, and goes back in its time.

    Args:
        source: The run.
        ascii_only: Draw in ASCII.
    """

    CHARTS: ClassVar[int] = 6

    def __init__(self, source: RunSource, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.source, self.view = source, source.view
        mode: Mode = "ascii" if ascii_only else "braille"
        self._chart_widgets = [Chart(mode=mode, id=f"chart-{n}") for n in range(self.CHARTS)]
        self.charts = ChartSet(self._chart_widgets)
        self._moment: RunMoment | None = None
        self._past = self.view
        self._parents, self._reads_parent = ParentReader(), False
        self._fork_words: ForkWords | None = None

    def on_mount(self) -> None:
        """Look for the parent of a fork, now and while it may train."""
        self._parent_timer = self.set_interval(PARENT_S, self._read_parent)
        self._read_parent()

    @work(group="parent")
    async def _read_parent(self) -> None:
        """Compare a fork with its parent, which a thread reads, and draw the curves of the parent behind."""
        run = self.source.run
        if run is None or self._reads_parent:
            return
        self._reads_parent = True
        try:
            parent = await in_background(lambda: self._parents.read(run))
        except MptuiError:  # there is nothing to compare it with
            return
        finally:
            self._reads_parent = False
        if parent is None:
            self._parent_timer.stop()
        elif self.is_running:
            self._fork_words = fork_words(parent, self.view)
            self.charts.put_behind(parent.curves)
            self.show_header()

    @property
    def shown(self) -> RunView:
        """The view that panels show: that of the chosen moment, or the current one."""
        return self.view if self._moment is None else self._past

    @property
    def position(self) -> RunPosition | None:
        """The position of the run; None before its first step."""
        last = self.view.latest
        if self.view.started is None or last is None:
            return None
        samples = self.view.started.train_samples
        return RunPosition(last.step, last.epoch - 1, last.epoch_step, samples, last.lr)

    def show_panels(self) -> None:
        """Show the view in all panels, and the timeline."""
        for panel in self.query("Panel"):
            assert isinstance(panel, Panel)
            panel.show(self.shown)
        self.show_timeline()

    def show_timeline(self) -> None:
        """Show the timeline, with the cursor at the chosen moment."""
        self.query_one(Ribbon).show(self.view.timeline, self._moment)

    def show_header(self) -> None:
        """Show the state of the run now."""
        now = self.view.time if self.source.finished else time.time()
        self.query_one(Header).show(self.view, now, self._moment, self._fork_words)

    def go_to(self, moment: RunMoment | None) -> bool:
        """Show the run at a moment, or None: now; return whether it was shown otherwise before."""
        if moment == self._moment:
            return moment is None and self.charts.remove_cursor()
        self._past, self._moment = self.shown, moment  # until the new one has been read
        self.charts.pin(None if moment is None else moment.step)
        self.show_header()
        if moment is None:
            self.show_panels()
        else:
            self.show_timeline()
            self._read_past(moment)
        return True

    @work(exclusive=True, group="past")
    async def _read_past(self, moment: RunMoment) -> None:
        run = self.source.run
        past = await in_background(lambda: folded_until(run, moment))
        if self._moment == moment:
            self._past = completed(past, self.view, moment)
            self.show_panels()

    @on(Ribbon.Pointed)
    def _pointed_at_time(self, event: Ribbon.Pointed) -> None:
        self.go_to(event.moment)

    @on(Chart.Pointed)
    def _pointed_at_step(self, event: Chart.Pointed) -> None:
        moment = self.view.timeline.moment_at(event.step)
        if moment is None:
            self.charts.pin(event.step)
        else:
            self.go_to(moment)

    @on(Chart.Zoomed)
    def _zoomed(self, event: Chart.Zoomed) -> None:
        self.charts.zoom(self.view.step, event.closer, event.step)

    @on(Chart.Panned)
    def _panned(self, event: Chart.Panned) -> None:
        self.charts.pan(self.view.step, event.share)

    def action_move(self, columns: int) -> None:
        """Show the moment some columns of the timeline later, or earlier if negative."""
        self.go_to(self.query_one(Ribbon).moved(columns))

    def action_leap(self, way: int) -> None:
        """Show the moment a page of the timeline later, or earlier if negative."""
        ribbon = self.query_one(Ribbon)
        self.go_to(ribbon.moved(way * ribbon.page()))

    def action_beginning(self) -> None:
        """Show the beginning of the run."""
        self.go_to(self.query_one(Ribbon).moved(-self.view.timeline.used))

    def action_now(self) -> None:
        """Show the run now."""
        self.go_to(None)

    def action_log_axis(self) -> None:
        """Toggle logarithmic value axes of the charts."""
        self.charts.toggle_log()

    def action_smoothing(self) -> None:
        """Toggle smoothing of the curves."""
        self.charts.toggle_smoothing()

    def action_zoom(self, closer: bool) -> None:
        """Show fewer or more steps, around the cursor if there is one."""
        self.charts.zoom(self.view.step, closer)

    def action_pan(self, share: float) -> None:
        """Show later steps by a share of those shown, or earlier ones if negative."""
        self.charts.pan(self.view.step, share)

    def action_whole(self) -> None:
        """Show all steps."""
        self.charts.whole()
