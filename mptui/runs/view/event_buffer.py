"""Events on their way to a reader that may be slow: bounded, and never in the way of the run."""

import threading
from collections import deque

from mptui.events import Event

CAPACITY = 10_000


class EventBuffer:
    """A ring that one side fills and another drains; when it is full the oldest event goes.

    The writer never waits: a stalled terminal costs the run nothing. What was lost is in the journal.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self._arrived = threading.Event()

    def put(self, event: Event) -> None:
        """Add an event; safe from any thread."""
        self._events.append(event)
        self._arrived.set()

    def drain(self) -> list[Event]:
        """All events that wait, oldest first."""
        self._arrived.clear()
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an event; whether there is one."""
        return self._arrived.wait(timeout)
