"""The app on a terminal: redirects output of libraries to a log, and handles signals."""

import contextlib
import os
import signal
from types import FrameType

from rich.console import RenderableType
from textual.events import Print

from mptui.tui.app import MptuiApp
from mptui.tui.terminal import supervisor
from mptui.tui.terminal.stdio import Terminal

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
        if self.signalled == signal.SIGHUP or (self.signalled is not None and self.may_leave()):
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
        supervisor.restore_alone()
        terminal.hang_up()
        app.take_signal(number)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, save)
    signal.signal(signal.SIGINT, take)
    signal.signal(signal.SIGHUP, hang_up)
