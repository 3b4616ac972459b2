"""Commands for a running trainer, which polls its mailbox between two steps."""

import math
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue


@dataclass(frozen=True, slots=True)
class Command:
    """A command from a key, a signal or a socket: one of `COMMANDS` (`mptui.registry.commands`).

    `id` is the one that its client gave it; "": none did. `by`: who asks, as `CommandAnswered.by`.
    """

    name: str
    argument: str | None = None
    id: str = ""
    by: str = ""


INSIST_S = 1.0
"""Seconds after a stop request from which another one is a second request, and not the same one on another
way: a signal to all processes of a group, and what a launcher or parent passes on."""


class Stopped(Exception):  # noqa: N818 - an outcome, not an error
    """The run ends on request, and is saved. `signal` is the signal that requested it; None for a key."""

    def __init__(self, signal: int | None = None) -> None:
        super().__init__("stopped")
        self.signal = signal


class RunAbandoned(BaseException):
    """The run has ended without the training thread; its work since then is discarded."""


class EarlyExit:
    """Ends a run during a compilation, which does not poll the mailbox for a minute or more.

    The training thread opens it after saving the state, and closes it after the compilation. In between,
    another thread that sees a stop request may take it and end the run; `close` then raises.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self.taken = False

    def open(self) -> None:
        """Allow other threads to end the run; call it once the state is saved."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """Continue in the training thread.

        Raises:
            RunAbandoned: The run has ended without this thread.
        """
        with self._lock:
            self._open = False
            if self.taken:
                raise RunAbandoned

    def take(self) -> bool:
        """Take the way out if it is open; returns whether the run may end without the training thread."""
        with self._lock:
            self.taken = self.taken or self._open
            return self.taken


class Mailbox:
    """Queue of commands to the training thread.

    It uses a SimpleQueue, whose `put` is safe in a signal handler: a lock or condition could be held by the
    thread that the signal interrupts.
    """

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self.stop_requested = False
        self.stop_signal: int | None = None
        self.insisted = False
        self._stopped_at = math.inf
        self.early_exit = EarlyExit()

    def post(self, command: Command) -> None:
        """Queue a command; safe from any thread and in a signal handler."""
        if command.name == "stop":
            self.stop(None)
        else:
            self._commands.put(command)

    def stop(self, signal: int | None) -> None:
        """Request that the run saves and ends; every phase checks this.

        A second request, `INSIST_S` or more after the first, does not wait for a disk that can't be written.
        """
        now = time.monotonic()
        self.insisted = self.insisted or now - self._stopped_at >= INSIST_S
        self._stopped_at = min(self._stopped_at, now)
        self.stop_signal = signal if signal is not None else self.stop_signal
        self.stop_requested = True
        self._commands.put(None)  # wakes a blocked `take`

    @property
    def stop_is_asked(self) -> bool:
        """Whether a stop was requested of this process, of which other ranks hear when they meet."""
        return self.stop_requested

    def save(self) -> None:
        """Request a checkpoint between two steps; safe in a signal handler."""
        self.post(Command("checkpoint", by="signal"))

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return the next command, or None after `timeout_s` or a stop request."""
        try:
            return self._commands.get(block=timeout_s > 0, timeout=timeout_s)
        except Empty:
            return None

    def __bool__(self) -> bool:
        return self.stop_requested or not self._commands.empty()

    def poll(self) -> None:
        """Raise Stopped if a stop was requested; here several processes wait for each other."""
        self.check_stop()

    def check_stop(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self.stop_requested:
            raise Stopped(self.stop_signal)
