"""Follows a run of another process, or a finished run, for a screen or a console."""

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mptui.engine.checkpoint.pointers import lost_words, steps_lost
from mptui.events import CommandAnswered, Event, RunFinished, Warned
from mptui.runs.remote import control
from mptui.runs.store import journal
from mptui.runs.store.directory import CHECKPOINTS, CRASHED, is_trained, status_of, time_of
from mptui.runs.store.index import fold_on, read_index
from mptui.runs.store.journal import LONGEST_LINE, read_events
from mptui.runs.store.lock import is_held
from mptui.runs.view.specs import event_of
from mptui.text import clean, shell_word

# Follows a run of another process, or a finished run, for a screen or a console
# ------------------------------------------------------------------------------
# The initial view comes from the run's index. A thread reads the journal from there up to the position that
# the run's socket names, and then follows the socket; without a socket, it follows the file. Polling never
# blocks.

LOOK_S = 0.25
"""Seconds between two reads of the file without a socket."""

HELLO_S = 5.0
"""Seconds that a run may take to answer, as it may be compiling. Also the time between two attempts."""

EVENTS_A_POLL = 8_000
"""Events that a screen handles in 0.2 s."""

PATIENCE_S = 15.0
"""Seconds that a command waits for a connection before it is refused."""

PENDING_LIMIT = 16
"""Largest number of commands waiting for a connection."""

WAITING_LIMIT = 20_000
"""Largest number of unpolled events; the thread pauses reading at this number."""


class Connection:
    """A connection to the socket of a run: its greeting, then its lines.

    Raises:
        OSError: There is no socket, or no answer.
    """

    def __init__(self, run: Path) -> None:
        self._socket = control.connect(run, HELLO_S)
        self._read = bytearray()
        self._more: list[dict[str, Any]] = []
        self._sent = 0
        try:
            self.hello = self._first()
        except OSError:
            self._socket.close()
            raise

    def _first(self) -> dict[str, Any]:
        until = time.monotonic() + HELLO_S
        while time.monotonic() < until:
            if documents := self.documents():
                hello, *self._more = documents
                if "hello" not in hello:
                    raise ConnectionError("not a run")
                return hello
        raise TimeoutError("no answer")

    def documents(self) -> list[dict[str, Any]]:
        """Wait a while for documents; return an empty list if none came.

        Raises:
            OSError: The other side closed the connection or sent invalid data.
        """
        if self._more:
            documents, self._more = self._more, []
            return documents
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return []
        if not data or len(self._read) > LONGEST_LINE:
            raise ConnectionError("the run closed the connection")
        self._read += data
        *lines, rest = self._read.split(b"\n")
        self._read = rest
        return [document for line in lines if (document := _document(bytes(line))) is not None]

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of reads."""
        self._socket.settimeout(seconds)

    def send(self, command: str, argument: str | None = None, by: str = "script") -> str:
        """Send a command of a script, or of a key, without waiting; return the id that its answers will have.

        Raises:
            OSError: It can't be sent.
        """
        self._sent += 1
        id = f"{os.getpid()}-{self._sent}"
        line = json.dumps({"command": command, "argument": argument, "id": id, "by": by}).encode() + b"\n"
        os.write(self._socket.fileno(), line)  # `send` would wait for room, as the socket has a timeout
        return id

    def answer(self, id: str) -> dict[str, Any]:
        """Wait for the answer to a command; other documents are kept for `documents`.

        Raises:
            OSError: There is none in `HELLO_S`, or the connection is lost.
        """
        kept: list[dict[str, Any]] = []
        until = time.monotonic() + HELLO_S
        while time.monotonic() < until:
            documents = self.documents()
            for place, document in enumerate(documents):
                if document.get("answer") == id:
                    self._more = [*kept, *documents[place + 1 :]]
                    return document
            kept += documents
        raise TimeoutError("no answer")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class AttachedRun:
    """Follows the run in a directory.

    Args:
        run: Its directory.
        readonly: Send no commands.
        is_alive: Returns whether events may come; None: while a process trains the run.
        resumed: Whether a run that had ended is about to be resumed: all its events so far are in the view.

    Attributes:
        view: The view of the run before the first event of `poll`.
    """

    hosted = False
    can_detach = False
    request = None

    def __init__(
        self,
        run: Path,
        *,
        readonly: bool = False,
        is_alive: Callable[[], bool] | None = None,
        resumed: bool = False,
    ) -> None:
        self.run = run
        self._is_alive = is_alive or partial(is_trained, run)
        self.profiles: Sequence[str] = ()
        self.given: Sequence[str] = ()
        self.exit_code = 0
        self._readonly = readonly
        self._events: deque[Event] = deque()
        self.view, self._position = read_index(run)
        if resumed:
            with contextlib.suppress(OSError):  # it has no journal yet
                for position in fold_on(run, self.view, self._position):
                    self._position = position
            self.view.finished = None
        self._step = self.view.step
        self._time = self.view.time
        self._finished = self.view.finished if self.view.phase == "finished" else None
        self._lived = False
        self._asked: dict[str, str] = {}
        self._connection: Connection | None = None
        self._pending: deque[tuple[str, str | None]] = deque(maxlen=PENDING_LIMIT)
        self._patient_until = 0.0
        self._next_try = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mptui-attached", daemon=True)

    def start(self) -> "AttachedRun":
        """Start following."""
        self._patient_until = time.monotonic() + PATIENCE_S
        self._thread.start()
        return self

    @property
    def finished(self) -> bool:
        """Whether no further events will come. Then `exit_code` is the run's, if it ended in the meantime."""
        return self._ended.is_set() and not self._events

    @property
    def connected(self) -> bool:
        """Whether the run receives commands at once."""
        return self._connection is not None

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        return [self._events.popleft() for _ in range(min(len(self._events), EVENTS_A_POLL))]

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the run; return whether it has ended."""
        return self._ended.wait(timeout)

    def send(self, command: str, argument: str | None = None) -> None:
        """Send a command to the run, now or once it is connected; impossible commands are refused."""
        if self._readonly:
            self._refuse(command, "this screen is read-only")
            return
        with self._lock:
            self._pending.append((command, argument))
            self._send_pending()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join(2 * LOOK_S)

    # -- the thread

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                alive = self._is_alive()  # checked before reading, so that its last events are read
                self._lived |= alive
                if alive and not is_held(self.run):  # a launcher is about to start its processes
                    self._patient_until = time.monotonic() + PATIENCE_S
                if alive and self._connect():
                    self._follow()
                    continue
                self._read(None)
                with self._lock:
                    self._send_pending()
                if not alive:
                    self._end()
                    return
                self._closing.wait(LOOK_S)
        finally:
            self._ended.set()

    def _connect(self) -> bool:
        if time.monotonic() < self._next_try:
            return False
        try:
            connection = Connection(self.run)
        except TimeoutError:
            self._next_try = time.monotonic() + HELLO_S
            return False
        except OSError:
            return False
        connection.set_timeout(LOOK_S)
        self.profiles, self.given = (_names(connection.hello.get(key)) for key in ("presets", "given"))
        with self._lock:
            self._connection = connection
            self._send_pending()
        return True

    def _send_pending(self) -> None:
        """Send pending commands; without a connection they wait for a while."""
        if self._connection is None and time.monotonic() < self._patient_until:
            return
        while self._pending:
            command, argument = self._pending.popleft()
            try:
                if self._connection is None:
                    raise ConnectionError
                self._asked[self._connection.send(command, argument, "key")] = command
            except OSError:
                self._refuse(command, f"no connection to the run; use mptui stop {shell_word(self.run)}")

    def _follow(self) -> None:
        """Read the journal up to the socket's position, then the socket until it is lost."""
        assert self._connection is not None
        try:
            end = self._connection.hello.get("journal")
            self._read(end if isinstance(end, int) else None)
            while not self._closing.is_set():
                for document in self._connection.documents():
                    self._handle(document)
        except OSError:
            pass
        finally:
            with self._lock:
                self._connection.close()
                self._connection = None
                self._patient_until = time.monotonic() + PATIENCE_S

    def _handle(self, document: dict[str, Any]) -> None:
        with self._lock:  # an answer may be read before `_send_pending` has noted its id
            command = self._asked.pop(str(document.get("answer")), "")
        if "error" in document and command:
            self._refuse(command, clean(str(document["error"]), 200))
        record, at = document.get("event"), document.get("at")
        event = event_of(record) if isinstance(record, dict) else None
        if isinstance(at, int):
            self._position = max(self._position, at)
        if event is not None:
            self._append([event])

    def _read(self, end: int | None) -> None:
        """Read the journal further, up to byte `end`; an unreadable one has no new events."""
        with contextlib.suppress(OSError):
            for position, events in read_events(self.run / journal.NAME, self._position, end):
                self._position = position
                self._append(events)
                if self._closing.is_set():
                    return

    def _append(self, events: list[Event]) -> None:
        while len(self._events) > WAITING_LIMIT and not self._closing.is_set():
            self._closing.wait(LOOK_S)
        if events:
            latest = events[-1]
            self._finished = latest if isinstance(latest, RunFinished) else None
            self._step = latest.step
            self._time = latest.time
            self._events.extend(events)

    def _end(self) -> None:
        """Handle the end of the training process: the run has ended or crashed."""
        finished = self._finished
        if finished is None:
            finished = _how_it_ended(self.run, self._step, self._time or time.time())
            self._append([finished])
        self.exit_code = finished.exit_code if self._lived else 0

    def _refuse(self, command: str, why: str) -> None:
        self._events.append(CommandAnswered(step=self._step, command=command, state="refused", detail=why))


def _how_it_ended(run: Path, step: int, when: float) -> RunFinished:
    """Return the end of a run whose journal has none: only the summary was written, or it crashed."""
    summary = status_of(run)
    crashed = summary["status"] == CRASHED
    code, (seconds, total) = summary.get("exit_code"), time_of(summary)
    return RunFinished(
        time=when,
        step=step,
        status=clean(str(summary["status"])),
        exit_code=code if isinstance(code, int) and not crashed else 1,
        message=_what_is_known(run, step) if crashed else "",
        hint=f"resume it: mptui resume {shell_word(run)}" if crashed else "",
        directory=str(run),
        seconds=seconds or 0.0,
        total_s=total,
    )


def _what_is_known(run: Path, step: int) -> str:
    """Say what a run left that has no recorded end."""
    words = "the training process ended without a word: killed (also for memory), or the machine went down"
    if not step:
        return f"{words}; it had taken no step"
    known = f"{words}; its last word is of step {step:,}"
    return "; ".join(part for part in (known, lost_words(steps_lost(run / CHECKPOINTS, step))) if part)


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


# A bounded buffer of events between the run and a reader, which may be slow
# --------------------------------------------------------------------------

CAPACITY = 10_000


class EventBuffer:
    """A ring buffer of events; when it is full, the oldest event is dropped, and read from the journal later.

    The writer never waits for the reader, so a stalled terminal doesn't delay the run.

    Args:
        reread: Returns the events between two positions of the journal; may raise an OSError.
        at: Position in the journal at which the reader begins.
        capacity: Largest number of events in memory.
    """

    def __init__(
        self, reread: Callable[[int, int], list[Event]], at: int = 0, capacity: int = CAPACITY
    ) -> None:
        self._reread = reread
        self._at = at
        self._capacity = capacity
        self._events: deque[tuple[int, Event]] = deque(maxlen=capacity)
        self._dropped = 0
        self._lock = threading.Lock()
        self._arrived = threading.Event()

    def handle(self, event: Event, at: int) -> None:
        """Add an event, after which the journal ends `at` this position; safe from any thread."""
        with self._lock:
            self._dropped += len(self._events) == self._capacity
            self._events.append((at, event))
        self._arrived.set()

    def drain(self) -> list[Event]:
        """Return the events since the last call, oldest first; much that is read again is thinned."""
        self._arrived.clear()
        with self._lock:
            kept, self._events = self._events, deque(maxlen=self._capacity)
            dropped, self._dropped = self._dropped, 0
        if not kept:
            return []
        start, self._at = self._at, kept[-1][0]
        events = [event for _, event in kept]
        if not dropped:
            return events
        try:
            # events of one position: the first ended there, and the others wait for the disk
            unwritten = sum(at == self._at for at, _ in kept) - 1
            return self._reread(start, self._at) + events[len(events) - unwritten :]
        except OSError as error:
            told = f"{dropped:,} events are missing here, as the journal can't be read: {error}"
            return [Warned(step=events[0].step, code="journal", message=told), *events]

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an event; return whether there is one."""
        return self._arrived.wait(timeout)


def _names(value: object) -> list[str]:
    """Return the names that a run tells a client."""
    return [clean(str(name), 100) for name in value] if isinstance(value, list) else []
