"""The terminal app: themes, keys, first screen. Imports no torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from textual import on
from textual.app import SystemCommand
from textual.events import Event, Key, Paste
from textual.filter import LineFilter
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen

from mptui.config.profiles import user_folder
from mptui.tui.dialogs.help import HelpScreen
from mptui.tui.keys.bindings import bindings, heard_on
from mptui.tui.keys.keymap import Keymap, load_keymap
from mptui.tui.keys.typed import KeyHandled, KeyQueue
from mptui.tui.notifications import TimedNotification
from mptui.tui.run_actions import RunActions
from mptui.tui.screens.page import Page
from mptui.tui.setup.last_theme import keep_theme
from mptui.tui.terminal.ascii import AsciiFilter
from mptui.tui.terminal.calling import fault_of_choice
from mptui.tui.themes import THEMES


class MptuiApp(RunActions, inherit_bindings=False):
    """The cockpit.

    Args:
        first: The first screen.
        keymap: The user's keys.
        theme: dark, light or ansi.
        ascii_only: Draw in ASCII.
        runs: The folder of the runs.
    """

    TITLE = "mptui"
    BINDINGS = bindings("app")
    CSS = """
    Toast { max-width: 60; }
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
        super().__init__(runs, keymap or Keymap(), ascii_only=ascii_only)
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self._first = first
        self._key_queue = KeyQueue(self, super().on_event)
        self._ascii_filter = AsciiFilter() if ascii_only else None

    def on_mount(self) -> None:
        """Apply the keymap, report its faults, and open the first screen."""
        self.set_keymap(self.keymap.bindings())
        for warning in self.keymap.warnings:
            self.notify(warning, title="keys.toml", severity="warning", markup=False)
        if fault := fault_of_choice():
            self.notify(fault, severity="warning", markup=False)
        self.watch_turns()
        self.push_screen(self._first, self.exit)

    async def on_event(self, event: Event) -> None:
        """Dispatch keys and pasted text one at a time."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            await self._key_queue.handle(event)
        else:
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

    def action_next_theme(self) -> None:
        """Switch to the next theme, and keep it for the next start."""
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
