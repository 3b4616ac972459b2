"""The whole program on the terminal: devices, then the picker, then the live screen, and back."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from textual import on
from textual.events import Print

from mptui.hardware.memory import keep_freed_memory
from mptui.tui import background
from mptui.tui.app import MptuiApp, person_keymap
from mptui.tui.ascii import needs_ascii
from mptui.tui.keymap import Keymap
from mptui.tui.last import state_folder
from mptui.tui.screens.detection import DetectionScreen
from mptui.tui.source import RunSource
from mptui.tui.terminal import Terminal

if TYPE_CHECKING:
    from mptui.runs.plan import Request
    from mptui.tui.screens.picker import PickerScreen

SIGNALS_A_SECOND = 4
_OWN_LOG = "console.log"


class Run(RunSource, Protocol):
    """A run that ends with this process, at the latest."""

    exit_code: int

    def stop(self, signal: int) -> None:
        """Ask it to save and end; safe in a signal handler."""

    def save(self) -> None:
        """Ask it to save and go on; safe in a signal handler."""

    def wait(self) -> None:
        """Wait for its end."""


class Cockpit(MptuiApp):
    """Devices, picker, live screen.

    Args:
        starter: Begins the run that was asked for.
        first: The screen of devices.
        keymap: The person's own keys.
        ascii_only: Show nothing beyond ASCII.
        environ: Where settings and folders are looked up.
    """

    def __init__(
        self,
        starter: "Callable[[Request], Run]",
        *,
        first: DetectionScreen | None = None,
        keymap: Keymap | None = None,
        ascii_only: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        keymap = keymap or Keymap()
        super().__init__(first or DetectionScreen(keymap=keymap.keys), keymap=keymap, ascii_only=ascii_only)
        self._starter, self._ascii_only, self._environ = starter, ascii_only, environ
        self.run_now: Run | None = None
        self.signalled: int | None = None

    def on_mount(self) -> None:
        """Begin to look for signals."""
        self.begin_capture_print(self)
        self.set_interval(1 / SIGNALS_A_SECOND, self._heed_signals)

    def on_print(self, event: Print) -> None:
        """Send what libraries print to the log, since the terminal is the screen's."""
        os.write(2 if event.stderr else 1, event.text.encode(errors="replace"))

    @on(DetectionScreen.Chosen)
    def _pick(self, event: DetectionScreen.Chosen) -> None:
        from mptui.tui.screens.picker import PickerScreen

        profile = event.advice.profile
        keys = self.keymap.keys
        self.push_screen(PickerScreen(event.device, profile=profile, keymap=keys, environ=self._environ))

    def on_picker_screen_started(self, event: "PickerScreen.Started") -> None:
        """Start the run, and show it."""
        from mptui.tui.screens.live import LiveScreen

        self.run_now = self._starter(event.request)
        screen = LiveScreen(self.run_now, keymap=self.keymap.keys, ascii_only=self._ascii_only)
        self.push_screen(screen, self._run_left)

    def _run_left(self, how: str | None) -> None:
        if how == "left":
            self.exit()

    def take_signal(self, number: int) -> None:
        """Note a signal; the run hears of it at once, the screens at their next look."""
        self.signalled = number
        if self.run_now is not None and number != signal.SIGHUP:
            self.run_now.stop(number)

    def _heed_signals(self) -> None:
        """Leave at once for a closed terminal; for the others when the run is saved."""
        if self.signalled is None:
            return
        if self.signalled == signal.SIGHUP or self.run_now is None or self.run_now.finished:
            self.exit()

    @property
    def exit_code_of_run(self) -> int:
        """How the last run ended, or which signal ended the program before one began."""
        stopped = self.signalled is not None and self.signalled != signal.SIGHUP
        if stopped and (self.run_now is None or self.run_now.exit_code == 0):
            return 128 + (self.signalled or 0)
        return self.run_now.exit_code if self.run_now else 0


def open_cockpit() -> int:
    """Show the program on this terminal until it is left; return the exit code of its last run.

    A run that still goes when the screen ends, since the terminal was closed, goes on to its end first.
    """
    keep_freed_memory()
    terminal = Terminal(state_folder() / _OWN_LOG)
    runs = Path(os.environ.get("MPTUI_RUNS_DIR") or "runs")

    def start(request: "Request") -> Run:
        from mptui.tui.session_source import SessionSource

        return SessionSource(
            request, runs, on_directory=lambda path: terminal.log_to(path / _OWN_LOG)
        ).start()

    app = Cockpit(start, keymap=person_keymap(), ascii_only=needs_ascii())
    _catch_signals(app, terminal)
    with terminal:
        app.run()
    if terminal.lost:
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # or the screen would try to draw again
    if app.run_now is not None and not app.run_now.finished:
        _tell(f"the run goes on without a screen; to save and stop it: kill {os.getpid()}")
        app.run_now.wait()
    code = app.return_code or app.exit_code_of_run
    if background.busy():
        # A thread that imports torch or waits for a driver can't be ended in order.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell(words: str) -> None:
    print(f"mptui: {words}", file=sys.stderr, flush=True)  # noqa: T201 - the screen is gone


def _catch_signals(app: Cockpit, terminal: Terminal) -> None:
    """Stop the run for SIGTERM, SIGUSR1 and SIGINT, save it for SIGUSR2; only leave the screen for SIGHUP.

    The handlers set flags: they are called even while a stalled terminal keeps the event loop waiting.
    """

    def take(number: int, _frame: FrameType | None) -> None:
        app.take_signal(signal.SIGTERM if number == signal.SIGUSR1 else number)

    def save(_number: int, _frame: FrameType | None) -> None:
        if app.run_now is not None:
            app.run_now.save()

    def hang_up(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        terminal.hang_up()
        app.take_signal(number)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, save)
    signal.signal(signal.SIGINT, take)
    signal.signal(signal.SIGHUP, hang_up)
