"""Signal handling of a run without a screen. Handlers only set flags, which every phase checks.

Handlers are installed before torch is imported, so that signals work from the start:

    SIGINT           save and stop (130); a second one, `INSIST_S` or more later, ends the process at once
    SIGTERM, SIGUSR1 save and stop (143); SLURM can send SIGUSR1 before it ends a job
    SIGUSR2          save and continue
    SIGHUP           ignored: closing the terminal doesn't end the run
    SIGTSTP          with a live display: restore the terminal, and stop until SIGCONT
"""

import math
import signal
import time
from types import FrameType
from typing import Any, Protocol

import typer

from mptui.engine.mailbox import INSIST_S


class Receiver(Protocol):
    """A run, or the launcher of its processes: called from handlers of signals."""

    def stop(self, signal: int | None, /) -> None:
        """Ask the run to save and stop."""

    def save(self) -> None:
        """Ask the run for a checkpoint."""


_STOPS = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGTERM,
}


class Signals:
    """Catches signals from its creation on, and passes them to the run once there is one.

    A context manager, which restores the previous handlers.

    Attributes:
        stop: The signal that asked to stop; None: none did.
    """

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self.stop: signal.Signals | None = None
        self._stopped_at = math.inf
        self._save = False
        self._suspend = False
        handlers: dict[signal.Signals, Any] = {
            **dict.fromkeys(_STOPS, self._stopped),
            signal.SIGUSR2: self._save_requested,
        }
        handlers[signal.SIGHUP] = signal.SIG_IGN
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}

    def __enter__(self) -> "Signals":
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attach(self, receiver: Receiver) -> None:
        """Pass signals received so far, and later ones, to the run."""
        self._receiver = receiver
        self._pass_on()

    @property
    def stop_requested(self) -> bool:
        """Whether a signal asked to stop."""
        return self.stop is not None

    def catch_suspend(self) -> None:
        """Record SIGTSTP (ctrl+z) from now on instead of stopping, so that a display can close first."""
        signal.signal(signal.SIGTSTP, self._suspend_requested)

    def take_suspend(self) -> bool:
        """Whether ctrl+z was pressed since the last call."""
        requested, self._suspend = self._suspend, False
        return requested

    def leave_if_stopped(self) -> None:
        """Exit if a stop was asked for before the run began: there is nothing to save."""
        if self.stop is not None:
            raise typer.Exit(128 + self.stop)

    def _stopped(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        # before, it is the same one, sent to all processes of a group and passed on by one of them
        if number == signal.SIGINT and now - self._stopped_at >= INSIST_S:
            raise KeyboardInterrupt
        self._stopped_at = min(self._stopped_at, now)
        self.stop = _STOPS[signal.Signals(number)]
        self._pass_on()

    def _save_requested(self, _number: int, _frame: FrameType | None) -> None:
        self._save = True
        self._pass_on()

    def _suspend_requested(self, _number: int, _frame: FrameType | None) -> None:
        self._suspend = True

    def _pass_on(self) -> None:
        if self._receiver is None:
            return
        if self.stop is not None:
            self._receiver.stop(self.stop)
        if self._save:
            self._save = False
            self._receiver.save()
