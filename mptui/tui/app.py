"""The terminal app: themes, keys, first screen. Imports no torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import App, SystemCommand
from textual.events import Event, Key, Paste
from textual.filter import LineFilter
from textual.screen import Screen

from mptui.config.profiles import user_folder
from mptui.runs.listing.run_rows import RunList
from mptui.text import shell_word
from mptui.tui.dialogs.help import HelpScreen
from mptui.tui.keys.bindings import bindings, heard_on
from mptui.tui.keys.keymap import Keymap, load_keymap
from mptui.tui.keys.typed import KeyHandled, KeyQueue
from mptui.tui.screens.page import Page
from mptui.tui.terminal.ascii import AsciiFilter
from mptui.tui.terminal.driver import SteadyDriver
from mptui.tui.themes import THEMES

if TYPE_CHECKING:
    from mptui.tui.screens.runs_screen import RunsScreen


class MptuiApp(App[str], inherit_bindings=False):
    """The cockpit.

    Args:
        first: The first screen.
        keymap: The user's keys.
        theme: dark, light or ansi.
        ascii_only: Draw in ASCII.
        runs: The folder of the runs.
    """

    TITLE = "mptui"
    resumes = False
    """Whether runs can be resumed from here."""
    BINDINGS = bindings("app")
    CSS = """
    Toast { max-width: 60; }
    """

    def __init__(
        self,
        first: Page,
        *,
        keymap: Keymap | None = None,
        theme: str = "dark",
        ascii_only: bool = False,
        runs: Path = Path("runs"),
    ) -> None:
        super().__init__(driver_class=SteadyDriver)
        self.ascii_only, self.runs = ascii_only, RunList(runs)
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self.keymap = keymap or Keymap()
        self._first = first
        self._key_queue = KeyQueue(self, super().on_event)
        self._ascii_filter = AsciiFilter() if ascii_only else None

    def on_mount(self) -> None:
        """Apply the keymap, report its faults, and open the first screen."""
        self.set_keymap(self.keymap.bindings())
        for warning in self.keymap.warnings:
            self.notify(warning, title="keys.toml", severity="warning", markup=False)
        self.push_screen(self._first, self.exit)

    async def on_event(self, event: Event) -> None:
        """Dispatch keys and pasted text one at a time."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            await self._key_queue.handle(event)
        else:
            await super().on_event(event)

    @on(KeyHandled)
    def _key_heard(self) -> None:
        self._key_queue.key_handled()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters for each line of output."""
        filters = super().get_line_filters()
        return filters if self._ascii_filter is None else [*filters, self._ascii_filter]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette from the table of keys."""
        where = screen.where if isinstance(screen, Page) else "app"
        for key in heard_on(where):
            if key.palette:
                action = key.action if key.action.startswith("app.") else f"screen.{key.action}"
                yield SystemCommand(key.help, key.id, lambda action=action: self.run_action(action))

    def action_help(self) -> None:
        """Show all keys of this screen."""
        where = self.screen.where if isinstance(self.screen, Page) else "app"
        self.push_screen(HelpScreen(where, self.keymap.keys))

    def action_runs(self) -> None:
        """Open the list of runs above this screen, or go back from it."""
        from mptui.tui.screens.runs_screen import RunsScreen

        if isinstance(self.screen, RunsScreen):
            self.screen.back()
        elif isinstance(self.screen, Page):
            screen = RunsScreen(self.runs, self.keymap.keys, ascii_only=self.ascii_only)
            self.push_screen(screen, self.screen_left)

    def on_runs_screen_opened(self, event: "RunsScreen.Opened") -> None:
        """Show a run on the live screen, or resume it."""
        if event.resume:
            self.resume_run(event.run)
        else:
            self.open_run(event.run)

    def open_run(self, run: Path) -> None:
        """Show a run on the live screen: go back to it if it is the one below, else attach to it."""
        from mptui.runs.remote.attached_run import AttachedRun
        from mptui.tui.screens.live import LiveScreen

        below = self.screen_stack[-2]
        if isinstance(below, LiveScreen) and below.source.run == run:
            self.screen.dismiss("back")
            return
        source = AttachedRun(run).start()

        def left(how: str | None) -> None:
            source.close()
            self.screen_left(how)

        keys = self.keymap.keys
        live = LiveScreen(source, keymap=keys, ascii_only=self.ascii_only, resumable=self.resumes)
        self.push_screen(live, left)

    def resume_run(self, run: Path) -> None:
        """Resume a run on the live screen, in a program that trains."""
        words = f"this program only watches runs; resume it by: mptui resume {shell_word(run)}"
        self.notify(words, severity="warning", markup=False)

    def screen_left(self, how: str | None) -> None:
        """Leave the screen below, too, if the user quits."""
        if how in {"leave", "left"}:
            self.action_leave()

    def action_next_theme(self) -> None:
        """Switch to the next theme."""
        names = [theme.name for theme in THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)]

    async def action_back(self) -> None:
        """Call `back` of the screen."""
        if isinstance(self.screen, Page):
            self.screen.back()

    def action_leave(self) -> None:
        """Call `leave` of the screen, or exit."""
        if isinstance(self.screen, Page):
            self.screen.leave()
        else:
            self.exit()


def person_keymap() -> Keymap:
    """Read the user's keymap from the configuration folder."""
    return load_keymap(user_folder().parent)
