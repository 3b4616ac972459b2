"""The feed of a run, from which all that looks at it takes its events; follows a run of another process."""

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
from mptui.runs.store.index import read_index, view_to_resume
from mptui.runs.store.journal import LONGEST_LINE, read_events
from mptui.runs.store.lock import is_held
from mptui.text import clean, shell_word

# The feed of a run: its journal, read on from a position
# ------------------------------------------------------
# Whoever looks at a run begins with the view of a position of its journal (`runs/store/index.py`), and folds
# the events after it: a screen beside the run, one that has attached, a console. Polling never blocks.

LOOK_S = 0.25
"""Seconds between two reads of the file if nothing wakes its reader."""

EVENTS_A_POLL = 8_000
"""Events that a screen handles in 0.2 s."""

WAITING_LIMIT = 20_000
"""Largest number of unpolled events; the thread pauses reading at this number."""

FOLLOWED = 16 << 20
"""Bytes that a reader may be behind, about 40,000 events, and still reads each of them; more is thinned."""

CAPACITY = 10_000
"""Events of this process that are kept in memory although they are on disk."""


class Feed:
    """The events after a position of a journal: each once, in order, for one reader.

    Args:
        run: The run directory.
        position: The position, in bytes.
        whole: Length in bytes up to which the first range is read without thinning; None: the journal's.

    Attributes:
        position: The position after the last event that was read.
    """

    def __init__(self, run: Path, position: int, *, whole: int | None = None) -> None:
        self._path = run / journal.NAME
        self.position = position
        self._whole = whole
        self._events: deque[Event] = deque()
        self._closing = threading.Event()

    @property
    def pending(self) -> bool:
        """Whether events that were read have not been polled."""
        return bool(self._events)

    def add(self, *events: Event) -> None:
        """Add events that are in no journal, as the answers of this process."""
        self._events.extend(events)

    def poll(self) -> list[Event]:
        """Return the events since the last call, or some of very many."""
        return [self._events.popleft() for _ in range(min(len(self._events), EVENTS_A_POLL))]

    def read(self, end: int | None = None) -> Event | None:
        """Read the journal on, up to byte `end`; return the last event. Waits if its reader polls slowly.

        Raises:
            OSError: The file can't be read.
        """
        last = None
        for position, events in read_events(self._path, self.position, end, whole=self._whole):
            while len(self._events) > WAITING_LIMIT and not self._closing.wait(LOOK_S):
                pass
            self._events.extend(events)
            self.position = position
            last = events[-1] if events else last
            if self._closing.is_set():
                break
        self._whole = FOLLOWED
        return last

    def close(self) -> None:
        """Let `read` end."""
        self._closing.set()


class OwnFeed(Feed):
    """The feed of the process that writes the journal, which doesn't wait for its disk.

    Events are kept in memory until they are polled, and the writer never waits. If the reader is so late
    that they become too many, those that are on disk are dropped, and read there by a thread.

    Args:
        run: The run directory.
        capacity: Largest number of events in memory, beside those that wait for the disk.
    """

    def __init__(self, run: Path, capacity: int = CAPACITY) -> None:
        super().__init__(run, journal.length(run), whole=FOLLOWED)
        self._capacity = capacity
        self._kept: deque[tuple[int, Event]] = deque()
        self._dropped = self._dropped_to = 0
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._reader: threading.Thread | None = None

    def handle(self, event: Event, position: int, written: int) -> None:
        """Add an event, with the positions after it and after the last one on disk; safe from any thread."""
        with self._lock:
            self._kept.append((position, event))
            while len(self._kept) > self._capacity and self._kept[0][0] <= written:
                self._dropped_to, _ = self._kept.popleft()
                self._dropped += 1
        self._arrived.set()

    @property
    def pending(self) -> bool:
        """Whether there are events that have not been polled."""
        return self._is_late or bool(self._kept)

    @property
    def _is_late(self) -> bool:
        """Whether events of the journal come before those in memory."""
        return bool(self._events) or self._dropped_to > self.position

    def poll(self) -> list[Event]:
        """Return the events since the last call, or some of very many."""
        self._arrived.clear()
        with self._lock:
            if self._dropped_to > self.position and self._reader is None:
                self._reader = threading.Thread(target=self._read_dropped, name="mptui-feed", daemon=True)
                self._reader.start()
            if not self._is_late and self._kept:
                self._events.extend(event for _, event in self._kept)
                self.position = self._kept[-1][0]
                self._kept.clear()
        return super().poll()

    def drain(self) -> list[Event]:
        """Return all events since the last call; waits for the disk if some have to be read there."""
        events: list[Event] = []
        late = True
        while late:
            late = self._is_late
            events += self.poll()
            late |= self._is_late
            if (reader := self._reader) is not None:
                reader.join(LOOK_S)
        return events

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an event that has not been polled; return whether there is one."""
        return self._arrived.wait(timeout)

    def _read_dropped(self) -> None:
        """Read what was dropped; what can't be read is missing, and said to be."""
        while (end := self._dropped_to) > self.position:
            dropped, self._dropped = self._dropped, 0
            try:
                self.read(end)
            except OSError as error:
                told = f"{dropped:,} events are missing here, as the journal can't be read: {error}"
                self.add(Warned(code="journal", message=told))
            with self._lock:  # `poll` may have gone on meanwhile
                self.position = max(self.position, end)
        self._reader = None


# A connection to the socket of a run
# -----------------------------------

HELLO_S = 5.0
"""Seconds that a run may take to answer, as it may be compiling. Also the time between two attempts."""


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
                if not {"protocol", "hello"} & hello.keys():
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


# Follows a run of another process, or a finished run, for a screen or a console
# ------------------------------------------------------------------------------
# A thread reads the feed on whenever the socket of the run says so, without a socket from time to time.

PATIENCE_S = 15.0
"""Seconds that a command waits for a connection before it is refused."""

PENDING_LIMIT = 16
"""Largest number of commands waiting for a connection."""


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
        self.view, position = view_to_resume(run) if resumed else read_index(run)
        self._feed = Feed(run, position)
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
        return self._ended.is_set() and not self.pending

    @property
    def pending(self) -> bool:
        """Whether events that were read have not been polled."""
        return self._feed.pending

    @property
    def connected(self) -> bool:
        """Whether the run receives commands at once."""
        return self._connection is not None

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        return self._feed.poll()

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
        self._feed.close()
        self._thread.join(2 * LOOK_S)

    # -- the thread

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                alive = self.connected or self._is_alive()  # before reading, so that the last events are read
                self._lived |= alive
                if alive and not self.connected:
                    self._connect()
                self._read()
                with self._lock:
                    self._send_pending()
                if not alive:
                    self._end()
                    return
                self._await_more()
        finally:
            self._disconnect()
            self._ended.set()

    def _connect(self) -> None:
        if not is_held(self.run):  # a launcher is about to start its processes
            self._patient_until = time.monotonic() + PATIENCE_S
        if time.monotonic() < self._next_try:
            return
        try:
            connection = Connection(self.run)
        except TimeoutError:
            self._next_try = time.monotonic() + HELLO_S
            return
        except OSError:
            return
        connection.set_timeout(LOOK_S)
        self.profiles, self.given = (_names(connection.hello.get(key)) for key in ("presets", "given"))
        with self._lock:
            self._connection = connection

    def _disconnect(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._patient_until = time.monotonic() + PATIENCE_S

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

    def _await_more(self) -> None:
        """Wait until the run says that there is more to read, or for `LOOK_S`; handle its answers."""
        if self._connection is None:
            self._closing.wait(LOOK_S)
            return
        try:
            for document in self._connection.documents():
                self._handle(document)
        except OSError:
            self._disconnect()

    def _handle(self, document: dict[str, Any]) -> None:
        with self._lock:  # an answer may be read before `_send_pending` has noted its id
            command = self._asked.pop(str(document.get("answer")), "")
        if "error" in document and command:
            self._refuse(command, clean(str(document["error"]), 200))
        if isinstance(disk := document.get("disk"), str) and document.get("written") is False:
            self._feed.add(Warned(step=self._step, code="disk", message=clean(disk, 4096)))

    def _read(self) -> None:
        """Read the journal on; an unreadable one has no new events."""
        with contextlib.suppress(OSError):
            latest = self._feed.read()
            if latest is not None:
                self._finished = latest if isinstance(latest, RunFinished) else None
                self._step = latest.step
                self._time = latest.time

    def _end(self) -> None:
        """Handle the end of the training process: the run has ended or crashed."""
        finished = self._finished
        if finished is None:
            finished = _how_it_ended(self.run, self._step, self._time or time.time())
            self._feed.add(finished)
        self.exit_code = finished.exit_code if self._lived else 0

    def _refuse(self, command: str, why: str) -> None:
        self._feed.add(CommandAnswered(step=self._step, command=command, state="refused", detail=why))


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
    words = "the training process recorded no end: it was killed (also for memory), or the machine went down"
    if not step:
        return f"{words}; it had taken no step"
    known = f"{words}; its last record is of step {step:,}"
    return "; ".join(part for part in (known, lost_words(steps_lost(run / CHECKPOINTS, step))) if part)


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _names(value: object) -> list[str]:
    """Return the names that a run tells a client."""
    return [clean(str(name), 100) for name in value] if isinstance(value, list) else []
