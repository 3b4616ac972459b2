"""The live screen: state, charts and log of a run, and the keys that control it."""

from contextlib import suppress
from functools import partial
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message

from mptui import format as fmt
from mptui.errors import MptuiError
from mptui.runs.planning.profile_diff import SwitchPrediction, predict_switch
from mptui.runs.view.events.event_registry import EVENTS
from mptui.runs.view.labels import is_percent
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.dialogs.choices import Answer, LeaveDialog, StopDialog
from mptui.tui.dialogs.choose_metrics import ChooseMetricsDialog
from mptui.tui.dialogs.switch_profile import SwitchProfileDialog
from mptui.tui.frame_budget import Budget
from mptui.tui.keys.bindings import bindings
from mptui.tui.keys.typed import KEYS_WAIT
from mptui.tui.screens.memory_screen import MemoryScreen
from mptui.tui.screens.numerics import NumericsScreen
from mptui.tui.screens.page import WIDTHS, Page
from mptui.tui.screens.pictures_screen import PicturesScreen
from mptui.tui.screens.ranks_screen import RanksScreen
from mptui.tui.screens.run_page import RunPage
from mptui.tui.sources.source import RunSource
from mptui.tui.threads import in_background
from mptui.tui.widgets.alert_bar import OFFERS, AlertBar
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.chart.chart_set import charts_of
from mptui.tui.widgets.column import Column
from mptui.tui.widgets.failure import Failure
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.live.folded import Folded
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.live_panels import build_panels
from mptui.tui.widgets.live.log import LogPanel
from mptui.tui.widgets.live.ribbon import Ribbon
from mptui.tui.widgets.small import TooSmall

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

LEFT_CHARTS, RIGHT_CHARTS = (0, 1, 4, 5), (2, 3)
"""Places of the charts, in the order of importance: 2 is shown from 31 rows, 3 from `MORE_ROWS`, 4 and 5 if
there are `MOST_COLUMNS`, too."""

MORE_ROWS, MOST_COLUMNS = 42, 160

ALL_PANELS, WHOLE_PANELS = 24, 27
"""Screen heights from which all panels fit below each other: narrowed, and in full."""


class LiveScreen(RunPage):
    """Shows one run, live or from its journal.

    Args:
        source: Delivers events and receives commands.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
        resumable: Whether the program can resume a run that another process has trained.
    """

    where = "live"
    BINDINGS = bindings("live")
    CSS_PATH = "live.tcss"

    class ResumeRequested(Message):
        """The ended run in this directory is to be resumed."""

        def __init__(self, run: Path) -> None:
            super().__init__()
            self.run = run

    def __init__(
        self,
        source: RunSource,
        *,
        keymap: dict[str, str] | None = None,
        ascii_only: bool = False,
        resumable: bool = False,
    ) -> None:
        super().__init__(source, ascii_only=ascii_only)
        self._keymap = keymap or {}
        self._ascii_only, self._resumable = ascii_only, resumable
        self._page = 0
        self._chosen_metrics: list[str] = []
        self._leaving = False
        self._pausing: bool | None = None
        self._budget = Budget(SHARE, SLOWEST_S)
        self._undrawn = True

    def compose(self) -> ComposeResult:
        """Lay out the header, the panels and the keys; the stylesheet folds them for small screens."""
        yield Header()
        yield AlertBar(self._keymap)
        yield Ribbon(ascii_only=self._ascii_only)
        with Horizontal(id="body"):
            with Vertical(id="left"):
                with Vertical(id="charts"):
                    yield from (self._chart_widgets[number] for number in LEFT_CHARTS)
                yield Folded(ascii_only=self._ascii_only, id="folded")
                yield LogPanel(id="log")
            with Column(id="right"):
                yield from build_panels(self._ascii_only)
                yield from (self._chart_widgets[number] for number in RIGHT_CHARTS)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def on_mount(self) -> None:
        """Begin to look."""
        self.poll()
        self.set_interval(1 / POLLS_PER_SECOND, lambda: self.poll(at_once=False))

    def size_classes(self, size: Size) -> dict[str, bool]:
        """See `Page.size_classes`; the number of pages for the panels is among them."""
        width, height = size
        return super().size_classes(size) | {
            "-split": height < ALL_PANELS,
            "-close": height < WHOLE_PANELS,
            "-ribbon": height > ALL_PANELS or width < WIDTHS[-1][0],
            "-more": height >= MORE_ROWS,
            "-most": width >= MOST_COLUMNS and height >= MORE_ROWS,
        }

    def on_resize(self, event: Resize) -> None:
        """Let keys scroll the panels where they don't fit."""
        self.query_one("#right").can_focus = event.size.height < ALL_PANELS

    def poll(self, *, at_once: bool = True) -> None:
        """Show new events; those that only change figures can wait for the next drawing."""
        events = self.source.poll()
        for event in events:
            self.view.handle(event)
        self._pausing = None if self._pausing == self.view.paused else self._pausing
        self.show_header()
        self._undrawn |= bool(events) or not self.view.version
        at_once |= any(EVENTS[event.kind].shown_at_once for event in events)
        if self._undrawn and (at_once or self._budget.allows()):
            self._undrawn = False
            self._show()
        if self._has_ended():
            self._close_questions()

    def _close_questions(self) -> None:
        """Close questions that the end of the run has answered; quit if the user was quitting."""
        question = self.app.screen
        if isinstance(question, LeaveDialog | StopDialog):
            self._leaving |= isinstance(question, LeaveDialog)
            question.dismiss(None)
        elif self._leaving and self.is_current:
            self.dismiss("left")

    def _show(self) -> None:
        self._offer_keys()
        self.query_one(AlertBar).show(self.view)
        if failed_to_start(self.view):
            self._show_failure()
        self.set_class(self.view.images is not None, "-images")
        self.show_panels()
        self.charts.show(self.view, charts_of(self.view, self._chosen_metrics))

    def _offer_keys(self) -> None:
        going = self.view.finished is None
        states = {
            "always": not failed_to_start(self.view),
            "several": self.view.ranks is not None,
            "going": going,
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
            dialog = StopDialog(self._keymap, "stop the run?", words)
            self.app.push_screen(dialog, lambda how: self.action_command("stop") if how == "stop" else None)

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
        self.source, self.view = source, source.view
        self.query(Failure).remove()
        self.remove_class("-failed")
        self._undrawn = True
        self.poll()

    def action_preset(self, digit: int) -> None:
        """Switch to the profile of this digit; ask first if some settings can't change during a run."""
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
        prediction, position = SwitchPrediction(), self.position
        if run is not None and not self.source.finished:
            with suppress(MptuiError):  # the run refuses it in these words
                prediction = await in_background(lambda: predict_switch(run, name, request, position))
        if not prediction.kept and not (prediction.rate is not None and prediction.rate.is_large):
            self.action_command("preset", name)
        elif self.is_current:
            self.app.push_screen(
                SwitchProfileDialog(digit, name, prediction, self._keymap), partial(self._chosen, digit)
            )

    def _chosen(self, shown: int, digit: int | None) -> None:
        """Switch to the profile that was shown, or show another one."""
        if digit == shown:
            self.action_command("preset", self.source.profiles[digit - 1])
        elif digit:
            self.action_preset(digit)

    async def action_take_alert(self) -> None:
        """Do what the alert shown offers."""
        bar = self.query_one(AlertBar)
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
        self.query_one(AlertBar).answer()

    def action_numerics(self) -> None:
        """Open the numerics screen."""
        self._open(NumericsScreen(self.shown, self.action_command, self._keymap))

    def _open(self, screen: Page) -> None:
        """Open a screen above; quit with it."""
        self.app.push_screen(screen, lambda how: self.leave() if how == "leave" else None)

    def action_settings(self) -> None:
        """Open the settings of the run, also of one that has ended."""
        from mptui.tui.screens.setup.run_settings import RunSettingsScreen  # with the schema

        if self.source.run is None:
            self.notify("the run has no settings yet", severity="warning", markup=False)
        else:
            self._open(RunSettingsScreen(self.source, self.view, self._keymap))

    def action_memory(self) -> None:
        """Open the screen of the memory."""
        self._open(MemoryScreen(self.shown, self.source.run, self._keymap))

    def action_pictures(self) -> None:
        """Open the screen of the pictures."""
        run = self.source.run
        self._open(PicturesScreen(self.shown, run, self._keymap, ascii_only=self._ascii_only))

    def action_ranks(self) -> None:
        """Open the screen of the ranks, if there are several."""
        if self.view.ranks is None and (self.view.started is None or self.view.started.ranks == 1):
            self.notify("this run trains in one process", markup=False)
        else:
            self._open(RanksScreen(self.shown, self._keymap))

    def action_next_page(self) -> None:
        """Show the next page of a small screen; move the focus on a large one."""
        if self.has_class("-wide"):
            self.focus_next()
            return
        self.remove_class(f"-page-{self._page}")
        self._page = (self._page + 1) % (PAGES + self.has_class("-split"))
        self.add_class(f"-page-{self._page}")
        if self._page < PAGES - 1:
            self.query_one(f"#chart-{self._page}", Chart).focus()

    def action_metrics(self) -> None:
        """Ask which metrics to draw."""
        percent = {name: is_percent(name) for name in self.view.histories}
        last = {name: [*group.values()][-1].last for name, group in self.view.histories.items() if group}
        values = {
            name: fmt.percent(value) if percent[name] else fmt.figure(value) for name, value in last.items()
        }
        self.app.push_screen(ChooseMetricsDialog(values, self._chosen_metrics, self._draw_metrics))

    def _draw_metrics(self, names: list[str]) -> None:
        self._chosen_metrics = names
        self._show()

    def action_log(self) -> None:
        """Toggle between the log and the charts."""
        self.toggle_class("-log")
        self.query_one("#log" if self.has_class("-log") else "#chart-0").focus()

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
        if self.has_class("-log"):
            self.action_log()
        elif self.go_to(None):
            pass
        elif self._is_above_another() and (self.view.finished is not None or not self.source.hosted):
            self.dismiss("back")

    def leave(self) -> None:
        """Quit; while the run is training, ask first."""
        if self._has_ended() or not self.source.hosted:
            self.dismiss("left")
        else:
            hidden = frozenset() if self.source.can_detach else frozenset({"leave.detach"})
            dialog = LeaveDialog(self._keymap, "the run is still training", hidden=hidden)
            self.app.push_screen(dialog, self._answered)

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
