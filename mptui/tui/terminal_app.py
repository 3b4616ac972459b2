"""The app on a real terminal: what libraries print goes to a log, and signals are heeded."""

import contextlib
import os
import signal
from types import FrameType

from textual.events import Print

from mptui.tui.app import MptuiApp
from mptui.tui.terminal.stdio import Terminal

SIGNALS_A_SECOND = 4


class TerminalApp(MptuiApp):
    """An app that leaves for a signal, in order."""

    signalled: int | None = None

    def on_mount(self) -> None:
        """Begin to look for signals."""
        self.begin_capture_print(self)
        self.set_interval(1 / SIGNALS_A_SECOND, self._heed_signals)

    def on_print(self, event: Print) -> None:
        """Send what libraries print to the log, since the terminal is the screen's."""
        with contextlib.suppress(OSError):  # no room for the log is no reason to end the screen
            os.write(2 if event.stderr else 1, event.text.encode(errors="replace"))

    def take_signal(self, number: int) -> None:
        """Note a signal that ends the screen; safe in its handler."""
        self.signalled = number

    def take_save(self) -> None:
        """Note that SIGUSR2 asked for a checkpoint; safe in its handler."""

    def may_leave(self) -> bool:
        """Whether nothing is left to do before a signal ends the screen."""
        return True

    def _heed_signals(self) -> None:
        """Leave at once for a closed terminal, and for the others as soon as that may be."""
        if self.signalled == signal.SIGHUP or (self.signalled is not None and self.may_leave()):
            self.exit()


def catch_signals(app: TerminalApp, terminal: Terminal) -> None:
    """Tell `app` of SIGTERM, SIGUSR1 and SIGINT, and of SIGUSR2; turn away from the terminal for SIGHUP.

    The handlers set flags: they are called even while a stalled terminal keeps the event loop waiting.
    """

    def take(number: int, _frame: FrameType | None) -> None:
        app.take_signal(signal.SIGTERM if number == signal.SIGUSR1 else number)

    def save(_number: int, _frame: FrameType | None) -> None:
        app.take_save()

    def hang_up(number: int, _frame: FrameType | None) -> None:
        terminal.hang_up()
        app.take_signal(number)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, save)
    signal.signal(signal.SIGINT, take)
    signal.signal(signal.SIGHUP, hang_up)
