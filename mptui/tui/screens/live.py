"""The live screen: state, charts and log of a run, now or earlier, and the keys that control it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Input
from typing_extensions import override

from mptui.errors import MptuiError
from mptui.runs.listing.difference import Curves, ForkWords, GhostReader, ParentReader, fork_words
from mptui.runs.listing.rows import unstamped
from mptui.runs.planning.profile_diff import RunPosition, SwitchPrediction, predict_switch
from mptui.runs.store.past import completed, folded_until
from mptui.runs.view.history import RunMoment
from mptui.runs.view.run_view import RunView
from mptui.runs.view.specs import EVENTS
from mptui.text import clean
from mptui.tui.dialogs.questions import (
    Answer,
    LeaveDialog,
    StopDialog,
    SwitchProfileDialog,
    UndoDialog,
)
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.last import load_last, save_last
from mptui.tui.run_source import RunSource
from mptui.tui.screens.memory import MemoryScreen
from mptui.tui.screens.numerics import NumericsScreen
from mptui.tui.screens.page import HEIGHTS, WIDTHS, Page, TooSmall
from mptui.tui.screens.pictures import PicturesScreen
from mptui.tui.screens.ranks import RanksScreen
from mptui.tui.widgets.basics import Column, Failure, KeyBar, Panel
from mptui.tui.widgets.chart import Chart, ChartSet, charts_of, named_charts
from mptui.tui.widgets.grid import LEFT, RIGHT, Arrangement, ChartGrid, GridChoice, Room, arranged
from mptui.tui.widgets.header import OFFERS, AlertBar, Header
from mptui.tui.widgets.panels import PANELS, ClosingPanel, Folded, LogPanel, build_panels
from mptui.tui.widgets.plot import ABANDONED, PARENT, Mode
from mptui.tui.widgets.preparing import Preparing
from mptui.tui.widgets.ribbon import Ribbon
from mptui.tui.widgets.run_list import pinned_runs
from mptui.tui.work import Budget, in_background

# Base class of the live screen: charts, timeline and panels of a run, now or at an earlier moment
# ------------------------------------------------------------------------------------------------

PARENT_S = 2.0
"""Seconds between two looks at the parent of a fork."""


class RunPage(Page):
    """Shows a run, and goes back in its time.

    Args:
        source: The run.
        ascii_only: Draw in ASCII.
    """

    def __init__(self, source: RunSource, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.source = source
        self.view = source.view
        mode: Mode = "ascii" if ascii_only else "braille"
        self._chart_widgets = [
            Chart(mode=mode, fitted=True, id=f"chart-{n}") for n in range(len(LEFT) + len(RIGHT))
        ]
        self.charts = ChartSet(self._chart_widgets)
        self._moment: RunMoment | None = None
        self._past = self.view
        self._parents = ParentReader()
        self._reads_parent = False
        self._fork_words: ForkWords | None = None
        self._ghosts = GhostReader()
        self._reads_ghosts = False
        self._parent_curves: dict[str, Curves] = {}
        self._pinned_curves: dict[str, Curves] = {}

    def on_mount(self) -> None:
        """Look for the parent of a fork, now and while it may train."""
        self._parent_timer = self.set_interval(PARENT_S, self._read_parent)
        self._read_parent()
        self.set_interval(PARENT_S, self._look_for_pinned)

    def on_screen_resume(self) -> None:
        """Draw the runs that have been pinned meanwhile."""
        self._look_for_pinned()

    def _look_for_pinned(self) -> None:
        if pinned_runs(self.app) or self._pinned_curves:
            self._read_pinned()

    @work(group="ghosts")
    async def _read_pinned(self) -> None:
        """Draw the runs behind the charts that are pinned in the list of runs."""
        own = self.source.run and self.source.run.absolute()
        runs = [run for run in pinned_runs(self.app) if run != own]
        has_changed = bool(runs or self._pinned_curves) and self.is_current
        if self._reads_ghosts or not has_changed:
            return
        self._reads_ghosts = True
        try:
            found = await in_background(lambda: self._ghosts.read(runs))
        finally:
            self._reads_ghosts = False
        self._pinned_curves = {_ghost_word(run, runs): curves for run, curves in found.items()}
        self._put_behind()

    def _put_behind(self) -> None:
        if self.is_running:
            self.charts.put_behind({**self._parent_curves, **self._pinned_curves})

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
            self._parent_curves = {PARENT: parent.curves}
            self._put_behind()
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
        """Show the state of the run now, or at the chosen moment."""
        now = self.view.time if self.source.finished else time.time()
        self.query_one(Header).show(self.shown, now, self._moment, self._fork_words)

    def go_to(self, moment: RunMoment | None) -> bool:
        """Show the run at a moment, or None: now; return whether it was shown otherwise before."""
        if moment == self._moment:
            return moment is None and self.charts.remove_cursor()
        self._past, self._moment = self.shown, moment  # until the new one has been read
        self.charts.pin(None if moment is None else moment.step)
        self.show_header()
        self.show_timeline()
        if moment is None:
            self.call_after_refresh(self.show_panels)  # which takes longer than a key should
        else:
            self._read_past(moment)
        return True

    @work(exclusive=True, group="past")
    async def _read_past(self, moment: RunMoment) -> None:
        run = self.source.run
        past = await in_background(lambda: folded_until(run, moment))
        if self._moment == moment:
            self._past = completed(past, self.view, moment)
            self.show_header()
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
        self.charts.zoom(self.view.step, event.closer)

    @on(Chart.Whole)
    def action_whole(self) -> None:
        """Show all steps."""
        self.charts.show_all_steps()

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

    def action_all_values(self) -> None:
        """Toggle between value axes of all values and fitted ones."""
        self.charts.toggle_fit()

    def action_smoothing(self) -> None:
        """Toggle smoothing of the curves."""
        self.charts.toggle_smoothing()

    def action_zoom(self, closer: bool) -> None:
        """Show fewer or more steps, around the cursor if there is one."""
        self.charts.zoom(self.view.step, closer)

    def action_pan(self, share: float) -> None:
        """Show later steps by a share of those shown, or earlier ones if negative."""
        self.charts.pan(self.view.step, share)


# The live screen: state, charts and log of a run, and the keys that control it
# -----------------------------------------------------------------------------

POLLS_PER_SECOND = 4
"""How often the screen polls its source; the run never waits for it."""

SHARE = 0.01
"""Fraction of a CPU for drawing, as a training loop in this process shares the GIL.

With its polls, and the threads that read events and write frames, the screen needs some 0.02.
"""

SLOWEST_S = 2.0
"""Largest age of a figure in seconds, also on a busy CPU."""

PAGES = 3
"""Pages of a small screen: first chart, second chart, panels; the panels take two pages if space is short."""

HIGH = [*HEIGHTS[:-1], (33, HEIGHTS[-1][1])]
"""Breakpoints of the screen: `-high` has room for a chart below the panels."""

LANE_ROWS, MORE_ROWS, MOST_COLUMNS = 35, 43, 160

ALL_PANELS, WHOLE_PANELS = 24, 28
"""Screen heights from which all panels fit below each other: narrowed, and in full."""


class LiveScreen(RunPage):
    """Shows one run, live or from its journal.

    Args:
        source: Delivers events and receives commands.
        ascii_only: Draw in ASCII.
        resumable: Whether the program can resume a run that another process has trained.
    """

    where = "live"
    BINDINGS = bindings("live")
    VERTICAL_BREAKPOINTS = HIGH

    class ResumeRequested(Message):
        """The ended run in this directory is to be resumed."""

        def __init__(self, run: Path) -> None:
            super().__init__()
            self.run = run

    def __init__(
        self,
        source: RunSource,
        *,
        ascii_only: bool = False,
        resumable: bool = False,
    ) -> None:
        super().__init__(source, ascii_only=ascii_only)
        self._ascii_only = ascii_only
        self._resumable = resumable
        self._page = 0
        self._choice = GridChoice.of_text(load_last()["charts"])
        self._arrangement: Arrangement | None = None
        self._charts_page = 0
        self._leaving = False
        self._question: LeaveDialog | StopDialog | UndoDialog | None = None
        self._pausing: bool | None = None
        self._budget = Budget(SHARE, SLOWEST_S)
        self._undrawn = True
        self._preparing: Preparing | None = None
        self._alerts = AlertBar()

    def compose(self) -> ComposeResult:
        """Lay out the header, the panels and the keys; the stylesheet folds them for small screens."""
        yield Header(has_precision=True, ascii_only=self._ascii_only)
        yield self._alerts
        yield Ribbon(ascii_only=self._ascii_only)
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield ChartGrid(self._chart_widgets, id="charts")
                yield Folded(ascii_only=self._ascii_only, id="folded")
                yield ClosingPanel(id="closing")
                yield LogPanel(id="log")
            with Column(id="right"):
                yield from build_panels(self._ascii_only)
                yield from (self._chart_widgets[number] for number in RIGHT)
        yield Input(placeholder="metrics: names and globs, such as: loss, top*", compact=True, id="filter")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def on_compose(self) -> None:
        """Take the classes of the run's state, too, before anything is styled without them."""
        self.update_classes(self._state_classes(), update=False)

    def _state_classes(self) -> dict[str, bool]:
        return {
            "-ended": self.shown.finished is not None,
            "-images": self.view.images is not None,
            "-preparing": self.view.is_preparing,
        }

    def on_mount(self) -> None:
        """Begin to look."""
        self.poll()
        self.set_interval(1 / POLLS_PER_SECOND, lambda: self.poll(at_once=False))

    @override
    def size_classes(self, size: Size) -> dict[str, bool]:
        """The number of pages for the panels is among them."""
        width, height = size
        return super().size_classes(size) | {
            "-split": height < ALL_PANELS,
            "-close": height < WHOLE_PANELS,
            "-ribbon": height > ALL_PANELS or width < WIDTHS[-1][0],
            "-lanes": height >= LANE_ROWS and width >= WIDTHS[-1][0],
            "-more": height >= MORE_ROWS,
            "-most": width >= MOST_COLUMNS and height >= MORE_ROWS,
        }

    def on_resize(self, event: Resize) -> None:
        """Let keys scroll the panels where they don't fit."""
        self.query_one("#right").can_focus = event.size.height < ALL_PANELS
        has_numbers = event.size.width >= WIDTHS[-1][0]  # else they have a line of their own
        self.charts.has_numbers = has_numbers
        self._undrawn = True
        self.poll()

    def poll(self, *, at_once: bool = True) -> None:
        """Show new events; those that only change figures can wait for the next drawing."""
        events = self.source.poll()
        for event in events:
            self.view.handle(event)
        self._pausing = None if self._pausing == self.view.paused else self._pausing
        self.show_header()
        self._undrawn |= bool(events) or not self.view.version
        at_once |= any(EVENTS[event.kind].shown_at_once for event in events)
        if self._preparing is not None:
            self._preparing.show_time()
        is_due = self._undrawn and (at_once or self._budget.allows())
        if is_due:
            self._undrawn = False
            self._show()
        if self._has_ended():
            self._close_questions()

    @override
    def show_panels(self) -> None:
        """Show the end of the run in place of what it does, once it has ended."""
        self.update_classes(self._state_classes())
        for name, spec in PANELS.items():
            if spec.needs is not None:
                self.query_one(f"#{name}").set_class(not spec.needs(self.view), "-absent")
        super().show_panels()

    def _close_questions(self) -> None:
        """Close the question that the end of the run has answered; quit if the user was quitting."""
        question = self._question
        if question is not None and question.is_active:  # not that of the run of a screen above
            self._leaving |= isinstance(question, LeaveDialog)
            question.dismiss(None)
        elif self._leaving and self.is_current:
            self.dismiss("left")

    def _show(self) -> None:
        self._alerts.show(self.view)
        self._offer_keys()
        if failed_to_start(self.view):
            self._show_failure()
        self._show_preparation()
        self.show_panels()
        self._draw_charts()

    def _draw_charts(self) -> None:
        """Draw the charts of the page, in the grid that is chosen."""
        choice, names = self._choice, charts_of(self.view, self._choice.words)
        found = arranged(choice, self._room(), len(names), self._charts_page)
        if found != self._arrangement:
            self._arrangement = found
            self.query_one(ChartGrid).lay_out(found)
        self.charts.show(self.view, dict(zip(found.places, names[found.first :], strict=False)))
        self.charts.note(_grid_words(choice, found, any(named_charts(self.view, choice.words))))

    def _room(self) -> Room:
        size = self.app.size
        return Room.on(size, self.size_classes(size), has_images=self.view.images is not None)

    def _show_preparation(self) -> None:
        """Show what a run does before the first point of its charts in their place; it is gone afterwards."""
        is_preparing, shown = self.view.is_preparing, self._preparing
        if is_preparing and shown is None:
            self._preparing = Preparing(self.source, ascii_only=self._ascii_only)
            self.mount(self._preparing, before="#body")
        elif shown is not None and not is_preparing:
            self._forget_preparation()

    def _forget_preparation(self) -> None:
        if self._preparing is not None:
            self._preparing.remove()
            self._preparing = None

    def _offer_keys(self) -> None:
        going = self.view.finished is None
        states = {
            "always": not failed_to_start(self.view),
            "several": self.view.ranks is not None,
            "going": going,
            "alert": self._alerts.alert is not None,
            "switched": going and self.view.undo_step is not None,
            "ended": not going and not self._cant_resume(),
        }
        self.query_one(KeyBar).offer(*(state for state, holds in states.items() if holds))

    def _show_failure(self) -> None:
        if self.view.finished is not None and not self.query(Failure):
            self.add_class("-failed")
            leads = "Esc: back · q: quit" if self._is_above_another() else "q: quit"
            self.mount(Failure(self.view.finished, leads), after="#body")

    def _is_above_another(self) -> bool:
        """Whether there is a previous screen to go back to."""
        return len(self.app.screen_stack) > 2

    def action_pause(self) -> None:
        """Pause or resume the run; what was asked last counts until it is so."""
        self._pausing = not (self.view.paused if self._pausing is None else self._pausing)
        self.action_command("pause" if self._pausing else "resume")

    def action_command(self, command: str, argument: str | None = None) -> None:
        """Send a command to the run; its answers arrive as events in the log."""
        if self._has_ended():
            self.notify("the run has ended", severity="warning", markup=False)
        else:
            self.source.send(command, argument)

    def action_stop(self) -> None:
        """Ask whether to stop the run, as a single key must not stop it."""
        if self._has_ended():
            self.action_command("stop")
        elif not self._leaving:
            words = "A checkpoint is saved first; `mptui resume` continues from it."
            self._question = StopDialog(self._keymap, "stop the run?", words)
            self.app.push_screen(
                self._question, lambda how: self.action_command("stop") if how == "stop" else None
            )

    @override
    def by_name(self) -> Iterable[tuple[str, str, Callable[[], None]]]:
        """Return the metrics: the charts are those of its name, and the first has the focus."""
        return [
            (f"metric {clean(name, 60)}", "go to its chart", partial(self._go_to_metric, name))
            for name in self.view.histories
        ]

    def _go_to_metric(self, name: str) -> None:
        self._choose(replace(self._choice, words=name))
        if self.has_class("-log"):
            self.action_log()
        self.query_one("#chart-0").focus()

    def _has_ended(self) -> bool:
        return self.source.finished or self.view.finished is not None

    def _cant_resume(self) -> str:
        """Return why the run can't be resumed from here; "" if it can."""
        ended = self.view.finished
        if ended is None:
            return "the run has not ended"
        if ended.status == "completed":
            return "the run is complete; `mptui resume RUN --epochs N` trains longer"
        here = (self.source.hosted or self._resumable) and self.source.run is not None
        return "" if here else "this run can't be resumed from here"

    def action_resume_run(self) -> None:
        """Resume the run, once its files are written."""
        run, why_not = self.source.run, self._cant_resume()
        if why_not or run is None:
            self.notify(why_not, severity="warning", markup=False)
        elif self.source.finished or self.source.hosted:  # a program waits for the files of its own run
            self.post_message(self.ResumeRequested(run))
        else:
            self.notify("the run is still writing its files", markup=False)

    def follow(self, source: RunSource) -> None:
        """Show the resumed run from its new source."""
        self.go_to(None)
        self.source = source
        self.view = source.view
        self._forget_preparation()
        self.query(Failure).remove()
        self.remove_class("-failed")
        self._undrawn = True
        self.poll()

    def action_preset(self, digit: int) -> None:
        """Ask whether to switch to the profile of this digit."""
        profiles = self.source.profiles
        if digit <= len(profiles):
            self._predict_switch(digit, profiles[digit - 1])
        else:
            known = ", ".join(f"{n} {name}" for n, name in enumerate(profiles, 1)) or "none"
            self.notify(clean(f"no profile {digit}; available: {known}"), severity="warning", markup=False)

    @work(exclusive=True, group=KEYS_WAIT)
    async def _predict_switch(self, digit: int, name: str) -> None:
        source = self.source
        run, request = source.run, source.request
        prediction, position, given = SwitchPrediction(), self.position, source.given
        if run is not None and not self.source.finished:
            try:
                prediction = await in_background(
                    lambda: predict_switch(run, name, request, position, given=given)
                )
            except MptuiError:
                self.action_command("preset", name)  # the run refuses it in these words
                return
        if self.is_current:
            self.app.push_screen(
                SwitchProfileDialog(digit, name, prediction, self._keymap), partial(self._chosen, digit)
            )

    def action_undo(self) -> None:
        """Ask whether to undo the last switch, or the last undo."""
        step, view = self.view.undo_step, self.view
        if step is None or self._has_ended():
            self.notify("no switch to undo", severity="warning", markup=False)
            return
        branch = " of the branch that was left" if view.is_undone else ""
        words = (
            f"Training goes on from step {step:,}{branch}, with {clean(view.undo_to, 24)}. What was trained "
            f"since is kept at step {view.step:,}: undo again to go back to it."
        )
        title = "undo the undo?" if view.is_undone else "undo the switch?"
        self._question = UndoDialog(self._keymap, title, words)
        self.app.push_screen(
            self._question, lambda how: self.action_command("undo") if how == "undo" else None
        )

    def _chosen(self, shown: int, digit: int | None) -> None:
        """Switch to the profile that was shown, or show another one."""
        if digit == shown:
            self.action_command("preset", self.source.profiles[digit - 1])
        elif digit:
            self.action_preset(digit)

    async def action_take_alert(self) -> None:
        """Do what the alert shown offers."""
        bar = self._alerts
        alert = bar.alert
        if alert is not None and alert.setting is not None:
            bar.answer()
            self.action_command("set", alert.setting)
        elif alert is not None and alert.code in OFFERS:
            bar.answer()
            await self.run_action(OFFERS[alert.code][0])
        else:
            self.notify("nothing is offered", markup=False)

    def action_hide_alert(self) -> None:
        """Show the next alert."""
        self._alerts.answer()

    def action_numerics(self) -> None:
        """Open the numerics screen."""
        self._open(NumericsScreen(self.shown, self.action_command))

    def _open(self, screen: Page) -> None:
        """Open a screen above; quit with it."""
        self.app.push_screen(screen, lambda how: self.leave() if how == "leave" else None)

    def action_settings(self) -> None:
        """Open the settings of the run, also of one that has ended."""
        from mptui.tui.screens.run_settings import RunSettingsScreen  # with the schema

        if self.source.run is None:
            self.notify("the run has no settings yet", severity="warning", markup=False)
        else:
            self._open(RunSettingsScreen(self.source, self.view))

    def action_memory(self) -> None:
        """Open the screen of the memory."""
        screen = MemoryScreen(self.shown, self.source.run, ascii_only=self._ascii_only)
        self._open(screen)

    def action_pictures(self) -> None:
        """Open the screen of the pictures."""
        run = self.source.run
        self._open(PicturesScreen(self.shown, run, ascii_only=self._ascii_only))

    def action_ranks(self) -> None:
        """Open the screen of the ranks, if there are several."""
        is_alone = self.view.started is None or self.view.started.ranks == 1
        if is_alone and self.view.ranks is None:
            self.notify("this run trains in one process", markup=False)
        else:
            self._open(RanksScreen(self.shown))

    def action_next_page(self) -> None:
        """Show the next page of a small screen; move the focus on a large one."""
        if self.has_class("-wide"):
            self.focus_next()
            return
        self.remove_class(f"-page-{self._page}")
        self._page = (self._page + 1) % (PAGES + self.has_class("-split"))
        if self._page == 1 and self.has_class("-grid"):  # which has all charts of the page
            self._page += 1
        self.add_class(f"-page-{self._page}")
        if self._page < PAGES - 1 and self._chart_widgets[self._page].display:
            self._chart_widgets[self._page].focus()

    def action_metrics(self) -> None:
        """Ask for names of metrics; the charts follow while they are typed."""
        self.add_class("-filtering")
        words = self.query_one("#filter", Input)
        words.value = self._choice.words
        words.focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._choose(replace(self._choice, words=event.value))

    @on(Input.Submitted, "#filter")
    def _filter_chosen(self) -> None:
        self.remove_class("-filtering")
        self._chart_widgets[0].focus()
        save_last({"charts": self._choice.text})

    def _choose(self, choice: GridChoice) -> None:
        self._choice, self._charts_page = choice, 0
        self._draw_charts()

    def action_grid(self, rows: int, columns: int) -> None:
        """Show the charts in more or fewer rows or columns; in fewer than one: as it fits."""
        choice = self._choice.stepped(rows, columns, self._room())
        if choice is None:
            self.notify("no room for more charts", markup=False)
        else:
            self._choose(choice)
            save_last({"charts": choice.text})

    def action_charts_page(self, way: int) -> None:
        """Show the next page of charts, or the previous one if negative."""
        if self._arrangement is None or self._arrangement.pages == 1:
            self.notify("all charts are on this page", markup=False)
        else:
            self._charts_page = (self._charts_page + way) % self._arrangement.pages
            self._draw_charts()

    def action_log(self) -> None:
        """Toggle between the log and the charts."""
        self.toggle_class("-log")
        # now, and not with `focus`, which is later: the next key may be here
        self.set_focus(self.query_one("#log" if self.has_class("-log") else "#chart-0"))

    def action_detach(self) -> None:
        """Detach the run, and release the terminal."""
        if not self.source.hosted or self._has_ended():
            self.leave()
        elif self.source.can_detach:
            self.dismiss("detached")
        else:
            self.notify("can't detach under SLURM or torchrun", severity="warning", markup=False)

    def back(self) -> None:
        """Close the log, an earlier moment, or a run that has ended."""
        may_close = self.view.finished is not None or not self.source.hosted
        if self.has_class("-filtering"):
            self.query_one("#filter", Input).value = ""
            self._choose(replace(self._choice, words=""))
            self._filter_chosen()
        elif self.has_class("-log"):
            self.action_log()
        elif self.go_to(None):
            pass
        elif may_close and self._is_above_another():
            self.dismiss("back")

    def leave(self) -> None:
        """Quit; while the run is training, ask first."""
        if self._has_ended() or not self.source.hosted:
            self.dismiss("left")
        else:
            hidden = frozenset() if self.source.can_detach else frozenset({"leave.detach"})
            self._question = LeaveDialog(self._keymap, "the run is still training", hidden=hidden)
            self.app.push_screen(self._question, self._answered)

    def _answered(self, answer: Answer | None) -> None:
        if answer == "stop":
            self._leaving = True
            self.action_command("stop")
        elif answer == "detach":
            self.dismiss("detached")


def failed_to_start(view: RunView) -> bool:
    """Whether the run ended by a failure before its first step."""
    ended = view.finished is not None and view.finished.status not in {"completed", "stopped"}
    return ended and not view.step


def _grid_words(choice: GridChoice, found: Arrangement, names_any: bool) -> str:
    """Say what is chosen of the charts, and the page: `2x3 · /loss · page 1 of 2`."""
    grid = f"{found.rows}x{found.columns}" if choice.rows or choice.columns else ""
    words = f"/{clean(choice.words, 40)}" if choice.words.strip() else ""
    none = "" if names_any or not words else ": no metric"
    is_paged = found.pages > 1 and (found.page or grid or words)
    page = f"page {found.page + 1} of {found.pages}" if is_paged else ""
    return " · ".join(each for each in (grid, words + none, page) if each)


def _ghost_word(run: Path, others: list[Path]) -> str:
    """Return the name of a run for the legend, without its time where that is enough to know it."""
    name = unstamped(clean(run.name, 40))
    is_known = name not in {PARENT, ABANDONED} and sum(unstamped(each.name) == name for each in others) == 1
    return name if is_known else f"run {clean(run.name, 40)}"
