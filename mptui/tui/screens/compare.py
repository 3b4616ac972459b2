"""The comparison of runs: a curve of all over each other, and what differs between them."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from mptui.errors import MptuiError
from mptui.runs.listing.compare import compare
from mptui.runs.listing.difference import STEPS, difference
from mptui.runs.listing.forking import parent_of
from mptui.runs.listing.run_curves import Curve, RunCurves, curves_of
from mptui.runs.store.directory import read_summary
from mptui.runs.view.run_view import RunView
from mptui.tui.keys.bindings import bindings
from mptui.tui.keys.typed import KEYS_WAIT
from mptui.tui.screens.page import Page
from mptui.tui.threads import in_background
from mptui.tui.widgets.chart.canvas import Mode
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.runs.difference_lines import difference_heading, difference_lines
from mptui.tui.widgets.runs.overlay import show_curve
from mptui.tui.widgets.setup.setting_list import KeyedList
from mptui.tui.widgets.small import TooSmall
from mptui.tui.widgets.topline import TopLine

RENEW_S = 2.0


class CompareScreen(Page):
    """Compares two to eight runs.

    Args:
        runs: Their directories.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    where = "compare"
    BINDINGS = bindings("compare")
    DEFAULT_CSS = """
    CompareScreen {
        Chart {
            height: 1fr;
            min-height: 8;
            border: round $frame;
            border-title-color: $quiet;
            border-subtitle-color: $quiet;
            padding: 0 1;
            &:focus { border: round $accent; border-title-color: $text-accent; }
        }
        #heading { height: 1; padding: 0 2; text-wrap: nowrap; }
        KeyedList { height: 1fr; }
        &.-tiny, &.-flat {
            TopLine, Chart, KeyedList, #heading, KeyBar { display: none; }
        }
    }
    """

    def __init__(self, runs: Sequence[Path], keymap: Mapping[str, str], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._runs, self._keymap, self._ascii_only = runs, keymap, ascii_only
        self._read, self._views = RunCurves(), dict[Path, RunView]()
        self._curve: Curve | None = None
        self._found: dict[str, Any] | None = None
        self._busy = False
        self._since: int | None = None
        self._top = TopLine()

    def compose(self) -> ComposeResult:
        """Lay out the curves, the differences and the keys."""
        mode: Mode = "ascii" if self._ascii_only else "braille"
        yield self._top
        yield Chart(mode=mode, id="curves")
        yield Static(Content.styled("reading settings and figures …", "$quiet"), id="heading", markup=False)
        yield KeyedList(id="differences", markup=False)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Read the runs, again while they train."""
        self._top.say(Content.styled(f"reading {len(self._runs)} runs …", "$quiet"))
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
            self._since = await in_background(self._fork_step)
            self._views = await in_background(partial(self._read.read, self._runs))
            if self.is_running:
                self._draw()
            self._found = await in_background(partial(compare, self._runs))
        except MptuiError as error:
            self.notify(error.message, severity="warning", markup=False)
        finally:
            self._busy = False
        if self.is_running:
            self._list()

    def _fork_step(self) -> int | None:
        """Return the step at which the second run was forked from the first; None: it was not."""
        parent = parent_of(self._runs[1], read_summary(self._runs[1])) if len(self._runs) == 2 else None
        return parent[1] if parent is not None and parent[0] == self._runs[0] else None

    def _draw(self) -> None:
        if self._since is None:
            self._top.say(Content.styled(f"comparing {len(self._runs)} runs", "$quiet"))
        else:
            parent, fork = (self._views.get(run) for run in self._runs)
            words = difference(parent, fork, self._since).sentence if parent and fork else ""
            told = words or f"waiting for the first {STEPS} steps of the fork"
            self._top.say(Content.styled(told, "$text-accent" if words else "$quiet"))
        curves = curves_of(list(self._views.values()))
        if self._curve not in curves:
            self._curve = curves[0] if curves else None
        if self._curve is not None:
            show_curve(self.query_one(Chart), self._runs, self._views, self._curve, self._since or 0)

    def _list(self) -> None:
        listed = self.query_one(KeyedList)
        width = listed.content_region.width - 3  # padding, and the scrollbar
        if self._found is not None and width > 0:
            self.query_one("#heading", Static).update(difference_heading(self._runs, width))
            lines = difference_lines(self._found, width)
            listed.replace([Option(line, id=key) for key, line in lines])

    def on_resize(self) -> None:
        """Lay the differences out in the new width."""
        self.call_after_refresh(self._list)

    def action_metric(self) -> None:
        """Draw the next curve that a run has."""
        curves = curves_of(list(self._views.values()))
        if curves and self._curve in curves:
            self._curve = curves[(curves.index(self._curve) + 1) % len(curves)]
            self._draw()

    def action_log_axis(self) -> None:
        """Toggle the logarithmic value axis."""
        self.query_one(Chart).toggle_log()

    def action_smoothing(self) -> None:
        """Toggle smoothing of the curves."""
        self.query_one(Chart).toggle_smoothing()

    def back(self) -> None:
        """Remove the cursor of the chart, or close."""
        if not self.query_one(Chart).remove_cursor():
            self.dismiss("back")

    def leave(self) -> None:
        """Quit as the screen below does."""
        self.dismiss("leave")
