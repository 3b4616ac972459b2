"""A bounded buffer of events between the run and a reader, which may be slow."""

import threading
from collections import deque
from collections.abc import Callable

from mptui.events import Event, Warned

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
        self._reread, self._at, self._capacity = reread, at, capacity
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
