"""Commands for a running trainer: a mailbox that it polls between two steps."""

import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue


@dataclass(frozen=True, slots=True)
class Command:
    """A command from a key, a signal or a socket: one of COMMANDS, with an argument for some."""

    name: str
    argument: str | None = None


COMMANDS = ("stop", "pause", "resume", "checkpoint", "validate", "preset", "set", "undo", "numerics")


class Stopped(Exception):  # noqa: N818 - an outcome, not an error
    """The run was asked to end; everything is saved. `signal` is the one that asked, or None for a key."""

    def __init__(self, signal: int | None = None) -> None:
        super().__init__("stopped")
        self.signal = signal


class RunAbandoned(BaseException):
    """The run has ended without the thread that trained it: what it did since is discarded."""


class EarlyExit:
    """Ends a run in the middle of a compile, which polls no mailbox for a minute or more.

    The worker opens it while all that was trained is on the disk; whoever sees a stop meanwhile takes it,
    and ends the run without the worker. One of the two is first, and the other learns of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self.taken = False

    def open(self) -> None:
        """Nothing would be lost without the worker, from now on."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """The worker goes on.

        Raises:
            RunAbandoned: The run has ended without it.
        """
        with self._lock:
            self._open = False
            if self.taken:
                raise RunAbandoned

    def take(self) -> bool:
        """End the run without the worker, if it can be spared; whether it can."""
        with self._lock:
            self.taken = self.taken or self._open
            return self.taken


class Mailbox:
    """Commands on their way to the worker thread.

    A SimpleQueue, whose `put` is safe in a signal handler: a lock or a condition could be held by the very
    thread that the signal interrupts.
    """

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self.stop_requested = False
        self.stop_signal: int | None = None
        self.early_exit = EarlyExit()

    def post(self, command: Command) -> None:
        """Leave a command; safe from any thread and from a signal handler."""
        if command.name == "stop":
            self.stop(None)
        else:
            self._commands.put(command)

    def stop(self, signal: int | None) -> None:
        """Ask the run to save and end; every phase checks this."""
        self.stop_signal = signal if signal is not None else self.stop_signal
        self.stop_requested = True
        self._commands.put(None)  # wakes a `take` that waits

    def save(self) -> None:
        """Ask for a checkpoint between two steps; safe in a signal handler."""
        self.post(Command("checkpoint"))

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """The next command, if there is one or comes in time; a stop ends the waiting at once."""
        try:
            return self._commands.get(block=timeout_s > 0, timeout=timeout_s)
        except Empty:
            return None

    def __bool__(self) -> bool:
        return self.stop_requested or not self._commands.empty()

    def check_stop(self) -> None:
        """Raise Stopped where a phase that has nothing to save can end at once."""
        if self.stop_requested:
            raise Stopped(self.stop_signal)
