"""A clock that stands still while this process is suspended.

A batch system that suspends a job, or a closed lid, stops all its processes at once. By the monotonic clock
each would find, when it goes on, that the others have been silent for hours.
"""

import threading
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds in which this process could run, if it is called regularly.

    Args:
        longest_s: Longest time between two calls that counts; what is beyond it was an absence of its own.
        now: The clock of the machine, in seconds.
    """

    def __init__(self, longest_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._longest_s, self._now = longest_s, now
        self._last, self._seconds = now(), 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds since the first call, without absences."""
        with self._lock:
            now = self._now()
            self._seconds += min(now - self._last, self._longest_s)
            self._last = now
            return self._seconds
