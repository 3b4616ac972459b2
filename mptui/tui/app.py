"""The terminal app: themes, keys, first screen, runs shown and acted on. Imports no torch."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import RenderableType
from textual import on, work
from textual.app import App, SystemCommand
from textual.events import Event, Key, Paste, Print
from textual.filter import LineFilter
from textual.notifications import Notification, Notify, SeverityLevel
from textual.screen import Screen

from mptui.config.profiles import user_folder
from mptui.errors import MptuiError
from mptui.io.files import read_regular, replace_unsynced, state_folder
from mptui.processes.start import LOG
from mptui.runs.listing.forks import fork_run, kept_checkpoints
from mptui.runs.listing.rows import RunList
from mptui.runs.store.directory import CONFIG, is_trained, status_of
from mptui.runs.view.words import closing_line
from mptui.text import shell_word
from mptui.tui.dialogs.help import HelpScreen
from mptui.tui.keys import (
    KEYS_WAIT,
    BoundKey,
    KeyHandled,
    Keymap,
    KeyQueue,
    bindings,
    display,
    elsewhere,
    heard_on,
    load_keymap,
)
from mptui.tui.last import load_list, save_last
from mptui.tui.palette import MOST_USES, PAGES, Commands, by_use
from mptui.tui.run_source import RunSource
from mptui.tui.screens.page import Page
from mptui.tui.terminal import process
from mptui.tui.terminal.background import TerminalBackground, is_light_by_environment
from mptui.tui.terminal.graphics import AsciiFilter, needs_ascii
from mptui.tui.terminal.process import SteadyDriver, Terminal, fault_of_choice
from mptui.tui.themes import ANSI, DARK, LIGHT, THEMES
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from mptui.lab.learn.formats import LearnChoices
    from mptui.runs.remote.feed import AttachedRun
    from mptui.tui.screens.fork import ForkChoice
    from mptui.tui.screens.runs import RunsScreen


# Opens the live screen of a run of another process, or of an ended run
# ---------------------------------------------------------------------

ENDING_S = 5.0
"""Seconds that an ended run may take to release its directory."""


def open_attached(source: "AttachedRun") -> int:
    """Show a run on this terminal; return its exit code if it ended in the meantime, else 0.

    If a signal ended the screen, return 128 + its number.
    """
    from mptui.tui.screens.live import LiveScreen

    process.tell_alone(True)
    terminal = Terminal(state_folder() / LOG)
    keymap, ascii_only = person_keymap(), needs_ascii()
    screen = LiveScreen(source, ascii_only=ascii_only)
    app = TerminalApp(
        screen, keymap=keymap, ascii_only=ascii_only, runs=source.run.parent, theme=chosen_theme()
    )
    catch_signals(app, terminal)
    with terminal:
        app.run()
    if screen.view.finished is not None:
        source.wait(ENDING_S)
    source.close()
    if not terminal.lost:
        print(closing_line(source.run, status_of(source.run)), file=sys.stderr)  # noqa: T201 - the screen is gone
    if app.signalled is not None and not terminal.lost:
        return 128 + app.signalled
    return app.return_code or source.exit_code


# Opens the screen of the exercises
# ---------------------------------


def open_lessons(choices: "LearnChoices", first: str) -> int:
    """Show the exercises on this terminal, `first` first; return the exit code.

    If a signal ended the screen, return 128 + its number.
    """
    from mptui.tui.screens.learn import LearnScreen

    terminal = Terminal(state_folder() / LOG)
    keymap, ascii_only = person_keymap(), needs_ascii()
    screen = LearnScreen(choices, first, ascii_only=ascii_only)
    app = TerminalApp(screen, keymap=keymap, ascii_only=ascii_only, theme=chosen_theme())
    catch_signals(app, terminal)
    with terminal:
        app.run()
    if app.signalled is not None and not terminal.lost:
        return 128 + app.signalled
    return app.return_code or 0


# Notifications that end, and end nothing else
# --------------------------------------------

SHORTEST_S = 0.1
"""The least that a screen opened in the last moment of a notification shows it, in seconds."""


class TimedNotification(Notification):
    """A notification of which no screen gets too little time left for a timer.

    Each screen that opens shows the notification for the time left, by a timer of Textual. One of less than
    nothing, as between two looks at the clock, never gives the event loop back: the program hangs. One of
    microseconds can end without a call: the notification stays.
    """

    @property
    def time_left(self) -> float:
        """Seconds for which a screen that opens now shows it."""
        return max(super().time_left, SHORTEST_S)

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return super().time_left <= 0


# What the app does with runs: list them, open, resume and fork them
# ------------------------------------------------------------------


class RunActions(App[str], inherit_bindings=False):
    """An app that knows the runs of a folder.

    Args:
        runs: The folder.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    resumes = False
    """Whether runs can be resumed from here."""

    def __init__(self, runs: Path, keymap: Keymap, *, ascii_only: bool) -> None:
        # without colours, those of the terminal itself: Textual would turn ours into greys
        super().__init__(driver_class=SteadyDriver, ansi_color=True if "NO_COLOR" in os.environ else None)
        self.runs = RunList(runs)
        self.keymap = keymap
        self.ascii_only = ascii_only
        self._paused: list[tuple[RunSource, RunSource]] = []

    def leave_screen(self) -> None:
        """Leave the current screen as the user would, or exit."""
        if isinstance(self.screen, Page):
            self.screen.leave()
        else:
            self.exit()

    def action_runs(self) -> None:
        """Open the list of runs above this screen, or go back from it."""
        from mptui.tui.screens.runs import RunsScreen

        if isinstance(self.screen, RunsScreen):
            self.screen.back()
        elif isinstance(self.screen, Page):
            screen = RunsScreen(self.runs, ascii_only=self.ascii_only)
            self.push_screen(screen, self.screen_left)

    @work(exclusive=True, group=f"{KEYS_WAIT}: learn")
    async def action_learn(self) -> None:
        """Open the exercises above this screen."""
        from mptui.lab.learn.exercises import choices_of
        from mptui.runs.planning.plan import Request
        from mptui.tui.screens.learn import LearnScreen

        choices = choices_of(Request(environ=os.environ), number="0.1", precision=None, rules="cuda")
        screen = LearnScreen(choices, "formats", ascii_only=self.ascii_only)
        self.push_screen(screen)

    def on_runs_screen_opened(self, event: "RunsScreen.Opened") -> None:
        """Show a run on the live screen, or resume it."""
        from mptui.tui.screens.runs import RunsScreen

        if not isinstance(self.screen, RunsScreen):  # a second click comes before the first one has opened it
            return
        if event.resume:
            self.resume_run(event.run)
        else:
            self.open_run(event.run)

    def open_run(self, run: Path) -> None:
        """Show a run on the live screen: go back to it if it is the one below, else attach to it."""
        from mptui.runs.remote.feed import AttachedRun
        from mptui.tui.screens.live import LiveScreen

        below = self.screen_stack[-2]
        if isinstance(below, LiveScreen) and below.source.run == run:
            self.screen.dismiss("back")
            return
        source = AttachedRun(run).start()

        def left(how: str | None) -> None:
            source.close()
            self.screen_left(how)

        live = LiveScreen(source, ascii_only=self.ascii_only, resumable=self.resumes)
        self.push_screen(live, left)

    def resume_run(self, run: Path) -> None:
        """Resume a run on the live screen, in a program that trains."""
        words = f"this program only watches runs; resume it by: mptui resume {shell_word(run)}"
        self._refuse(words)

    @work(exclusive=True, group=f"{KEYS_WAIT}: fork")
    async def action_fork(self) -> None:
        """Ask for a fork of the run on this screen: which checkpoint, which settings."""
        from mptui.runs.remote.control import preset_names
        from mptui.tui.screens.fork import ForkDialog

        run = self._run_shown()
        if run is None:
            return
        try:
            kept = await in_background(lambda: kept_checkpoints(run))
        except MptuiError as error:
            self._refuse(error.message)
            return
        if not kept:
            self._refuse("this run has no checkpoint yet; c saves one")
            return
        training = await in_background(lambda: is_trained(run))
        dialog = ForkDialog(run, kept, preset_names(os.environ), training=training)
        self.push_screen(dialog, self._chosen)

    @work(group="share")
    async def action_share(self) -> None:
        """Write this screen as SVG and PNG, and two lines on its run."""
        from mptui.tui.share import write_screen

        where = self.screen.where if isinstance(self.screen, Page) else "screen"
        svg, run = self.export_screenshot(), self._run_shown()
        try:
            path = await in_background(lambda: write_screen(svg, where, run))
        except MptuiError as error:
            self._refuse(error.message)
        else:
            self.notify(f"written: {path} and .png", markup=False)

    def _chosen(self, choice: "ForkChoice | None") -> None:
        if choice is not None:
            self._fork(choice)

    def _run_shown(self) -> Path | None:
        from mptui.tui.screens.live import LiveScreen
        from mptui.tui.screens.runs import RunsScreen

        if isinstance(self.screen, LiveScreen):
            return self.screen.source.run
        return self.screen.chosen if isinstance(self.screen, RunsScreen) else None

    @work(group=f"{KEYS_WAIT}: forking")
    async def _fork(self, choice: "ForkChoice") -> None:
        """Make the fork, train it, and draw it over its parent."""
        from mptui.runs.remote.feed import AttachedRun
        from mptui.tui.screens.compare import CompareScreen
        from mptui.tui.screens.live import LiveScreen

        try:
            parts = choice.run, choice.checkpoint, None, choice.profile
            fork = await in_background(lambda: fork_run(*parts))
        except MptuiError as error:
            self._refuse(error.message)
            return
        source = self.train_fork(fork, choice.sets)
        if choice.parent_does != "train":
            below = self.screen
            shown = below.source if isinstance(below, LiveScreen) else None
            if shown is None or shown.run != choice.run:
                shown = AttachedRun(choice.run).start()
            self.pause_during(source, shown)
        self.show_source(source)
        compared = CompareScreen([choice.run, fork], ascii_only=self.ascii_only)
        self.push_screen(compared, self.screen_left)

    def train_fork(self, fork: Path, sets: Sequence[str]) -> "RunSource":
        """Train a fork in a process of its own."""
        from mptui.runs.planning.plan import Request
        from mptui.tui.sources import IsolatedSource

        request = Request(str(fork / CONFIG), sets=sets, environ=os.environ)
        return IsolatedSource(request, fork.parent, resume=fork).start()

    def show_source(self, source: "RunSource") -> None:
        """Show a run that has been started on the live screen."""
        from mptui.tui.screens.live import LiveScreen

        live = LiveScreen(source, ascii_only=self.ascii_only)
        self.push_screen(live, self.screen_left)

    def pause_during(self, fork: RunSource, parent: RunSource) -> None:
        """Pause a run until its fork has ended."""
        parent.send("pause")
        self._paused.append((parent, fork))

    def resume_parents(self, *, also_waiting: bool = False) -> None:
        """Let parents go on whose forks have ended; `also_waiting`: all of them."""
        for pair in [*self._paused]:
            parent, fork = pair
            if also_waiting or fork.finished or parent.finished:
                self._paused.remove(pair)
                if not parent.finished:
                    parent.send("resume")

    def on_unmount(self) -> None:
        """Let paused parents go on."""
        self.resume_parents(also_waiting=True)

    def _refuse(self, words: str) -> None:
        self.notify(words, severity="warning", markup=False)

    def screen_left(self, how: str | None) -> None:
        """Leave the screen below, too, if the user quits."""
        if how in {"leave", "left"}:
            self.leave_screen()


# The terminal app: themes, keys, first screen. Imports no torch
# --------------------------------------------------------------


class MptuiApp(RunActions, inherit_bindings=False):
    """The cockpit.

    Args:
        first: The first screen.
        keymap: The user's keys.
        theme: dark, light or ansi; None: as the terminal's background.
        ascii_only: Draw in ASCII.
        runs: The folder of the runs.
    """

    TITLE = "mptui"
    BINDINGS = bindings("app")
    COMMANDS = {Commands}  # noqa: RUF012 - as Textual declares it
    # of all screens: one that brought its own would have what there is parsed anew as it opens
    CSS_PATH = sorted(Path(__file__).with_name("screens").glob("*.tcss"))
    CSS = """
    Toast { max-width: 60; }
    Page.-tiny > *, Page.-flat > * { display: none !important; }
    Page.-tiny > TooSmall, Page.-flat > TooSmall { display: block !important; }
    /* without colours, a shape tells what has the focus */
    App:nocolor {
        Chart:focus, LogPanel:focus, Page KeyedList:focus, #right:focus Panel { border: heavy $accent; }
        Page RunTable:focus-within { border: heavy $accent; }
        Page RunTable KeyedList:focus { border: none; }
    }
    /* the accent colour is one of words */
    App:ansi CommandList > .option-list--option-highlighted {
        color: ansi_bright_white;
        background: ansi_bright_black;
    }
    App:nocolor CommandList > .option-list--option-highlighted { text-style: bold underline; }
    """

    def __init__(
        self,
        first: Page,
        *,
        keymap: Keymap | None = None,
        theme: str | None = "dark",
        ascii_only: bool = False,
        runs: Path = Path("runs"),
    ) -> None:
        super().__init__(runs, keymap or Keymap(), ascii_only=ascii_only)
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme or theme_of_terminal(colours=self.console.color_system)
        self._follows_terminal = theme is None
        self._first = first
        self._key_queue = KeyQueue(self, self._hand_over)
        self._explained = set[tuple[str, str]]()
        self._ascii_filter = AsciiFilter() if ascii_only else None

    def on_mount(self) -> None:
        """Ask for the background, apply the keymap, report its faults, and open the first screen."""
        if self._follows_terminal and isinstance(self._driver, SteadyDriver):
            self._driver.ask_background()
        self.set_keymap(self.keymap.bindings())
        for warning in self.keymap.warnings:
            self.notify(warning, title="keys.toml", severity="warning", markup=False)
        if fault := fault_of_choice():
            self.notify(fault, severity="warning", markup=False)
        self.set_interval(1.0, self.resume_parents)
        self.push_screen(self._first, self.exit)

    async def on_event(self, event: Event) -> None:
        """Dispatch keys and pasted text one at a time."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            await self._key_queue.handle(event)
        else:
            await super().on_event(event)

    async def _hand_over(self, event: Event) -> None:
        """Pass a key or a pasted text on; say once where a key is for that does nothing on this screen."""
        page = self.screen
        if isinstance(event, Key) and isinstance(page, Page) and page.is_without(event.key):
            known = (page.where, event.key)
            if known not in self._explained:
                self._explained.add(known)
                self.notify(elsewhere(event.key, self.keymap.keys), markup=False)
        await super().on_event(event)

    @on(KeyHandled)
    async def _key_heard(self, message: KeyHandled) -> None:
        await self._key_queue.key_handled(message)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a notification for `timeout` seconds, on whatever screen is open; safe in other threads."""
        seconds = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        self.post_message(Notify(TimedNotification(message, title, severity, seconds, markup=markup)))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters for each line of output."""
        filters = super().get_line_filters()
        return filters if self._ascii_filter is None else [*filters, self._ascii_filter]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette: keys, those used most first, then what has a name."""
        keys = screen.keys_now(also_letters=True) if isinstance(screen, Page) else heard_on("app")
        for key in by_use(keys, load_list("used")):
            if key.palette:
                yield SystemCommand(key.help, display(key, self.keymap.keys), partial(self._do, key))
        if isinstance(screen, Page):
            yield from (SystemCommand(*each, discover=False) for each in screen.by_name())
        for page, words in PAGES.items():
            name = f"docs/{page}.md"
            copy = partial(self._copy_page, name)
            yield SystemCommand(f"docs {page}: {words}", f"copies {name}", copy, discover=False)

    async def _do(self, key: BoundKey) -> None:
        """Do what a key does, and remember that the palette was used for it."""
        save_last({"used": [*load_list("used"), key.id][-MOST_USES:]})
        await self.run_action(key.action if key.action.startswith("app.") else f"screen.{key.action}")

    def _copy_page(self, name: str) -> None:
        self.copy_to_clipboard(name)
        self.notify(f"{name}: its name is copied, where the terminal allows that", markup=False)

    def action_help(self) -> None:
        """Show the keys that do something now on this screen."""
        where, keys = "app", heard_on("app")
        if isinstance(self.screen, Page):
            where, keys = self.screen.where, self.screen.keys_now()
        self.push_screen(HelpScreen(where, keys, ascii_only=self.ascii_only))

    @on(TerminalBackground)
    def _background_told(self, message: TerminalBackground) -> None:
        if self._follows_terminal and self.theme != ANSI.name:
            self.theme = LIGHT.name if message.light else DARK.name

    def action_next_theme(self) -> None:
        """Switch to the next theme, and keep it for the next start."""
        if self.no_color:
            self.notify("NO_COLOR is set: the themes have no colours to differ in")
            return
        self._follows_terminal = False
        names = [theme.name for theme in THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)]
        keep_theme(self.theme)

    async def action_back(self) -> None:
        """Call `back` of the screen."""
        if isinstance(self.screen, Page):
            self.screen.back()

    def action_leave(self) -> None:
        """Call `leave` of the screen, or exit."""
        self.leave_screen()


def person_keymap() -> Keymap:
    """Read the user's keymap from the configuration folder."""
    return load_keymap(user_folder().parent)


# The theme that was chosen by its key, kept in the state folder; an unreadable file is ignored
# ---------------------------------------------------------------------------------------------

CHOICE = "MPTUI_THEME"
"""Variable that names a theme."""

_NAME = "theme"
_LARGEST = 64


def chosen_theme(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the theme of MPTUI_THEME, or the last one chosen; None: none, the terminal is asked.

    With NO_COLOR, the themes differ in nothing that is seen.
    """
    named, known = environ.get(CHOICE), {theme.name for theme in THEMES}
    if environ.get("NO_COLOR"):
        return ANSI.name
    if named in known:
        return named
    try:
        chosen = read_regular(state_folder(environ) / _NAME, _LARGEST).decode(errors="replace").strip()
    except OSError:
        return None
    return chosen if chosen in known else None


def theme_of_terminal(environ: Mapping[str, str] = os.environ, *, colours: str | None = None) -> str:
    """Return the theme until the terminal has told of its background: by TERM and COLORFGBG.

    In sixteen colours (`colours` is Rich's "standard"), a colour of our own would become the next of the
    sixteen: orange red, as an error is, and green white.
    """
    if environ.get("TERM") == "linux" or colours == "standard":
        return ANSI.name
    return LIGHT.name if is_light_by_environment(environ) else DARK.name


def keep_theme(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Keep the name of a theme for the next start; a failed write is ignored."""
    folder = state_folder(environ)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_unsynced(folder / _NAME, f"{name}\n".encode())


# The app on a terminal: redirects output of libraries to a log, and handles signals
# ----------------------------------------------------------------------------------

SIGNALS_A_SECOND = 4


class TerminalApp(MptuiApp):
    """An app that exits cleanly on a signal."""

    signalled: int | None = None

    def on_mount(self) -> None:
        """Start checking for signals."""
        self.begin_capture_print(self)
        self.set_interval(1 / SIGNALS_A_SECOND, self._heed_signals)

    def on_print(self, event: Print) -> None:
        """Redirect output of libraries to the log."""
        with contextlib.suppress(OSError):  # a full disk must not end the screen
            os.write(2 if event.stderr else 1, event.text.encode(errors="replace"))

    def panic(self, *renderables: RenderableType) -> None:
        """Close the screen for an error; the program then ends as one that has failed."""
        self._return_code = 1  # Textual leaves that of a fault in its own threads at 0
        super().panic(*renderables)

    def take_signal(self, number: int) -> None:
        """Record a signal that ends the screen; safe in a signal handler."""
        self.signalled = number

    def take_save(self) -> None:
        """Record a checkpoint request (SIGUSR2); safe in a signal handler."""

    def may_leave(self) -> bool:
        """Whether the screen can be closed for a signal now."""
        return True

    def _heed_signals(self) -> None:
        """Exit at once for a closed terminal, and for other signals once `may_leave` allows it."""
        must_leave = self.signalled == signal.SIGHUP or (self.signalled is not None and self.may_leave())
        if must_leave:
            self.exit()


def catch_signals(app: TerminalApp, terminal: Terminal) -> None:
    """Forward SIGTERM, SIGUSR1, SIGINT and SIGUSR2 to `app`; release the terminal for SIGHUP.

    The handlers only set flags, so that they work even while a stalled terminal blocks the event loop.
    """

    def take(number: int, _frame: FrameType | None) -> None:
        app.take_signal(signal.SIGTERM if number == signal.SIGUSR1 else number)

    def save(_number: int, _frame: FrameType | None) -> None:
        app.take_save()

    def hang_up(number: int, _frame: FrameType | None) -> None:
        process.restore_alone()
        terminal.hang_up()
        app.take_signal(number)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, save)
    signal.signal(signal.SIGINT, take)
    signal.signal(signal.SIGHUP, hang_up)
