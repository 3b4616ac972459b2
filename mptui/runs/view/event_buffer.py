"""A bounded buffer of events between the run and a reader, which may be slow."""

import threading
from collections import deque

from mptui.events import Event

CAPACITY = 10_000


class EventBuffer:
    """A ring buffer of events; when it is full, the oldest event is dropped.

    The writer never waits, so a stalled terminal doesn't delay the run. Dropped events are in the journal.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._arrived = threading.Event()

    def handle(self, event: Event) -> None:
        """Add an event; safe from any thread."""
        self._events.append(event)
        self._arrived.set()

    def drain(self) -> list[Event]:
        """Remove and return all events, oldest first."""
        self._arrived.clear()
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an event; return whether there is one."""
        return self._arrived.wait(timeout)
