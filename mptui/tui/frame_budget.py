"""Limits the CPU time of drawing while a run trains in the same interpreter."""

import time
from collections.abc import Callable


class Budget:
    """Allows a drawing if the thread has used at most its share of the time since the last one.

    Expensive drawings (large terminals, many curves) are therefore less frequent, but at least one is allowed
    every `slowest` seconds.

    Args:
        share: Fraction of the time, between 0 and 1.
        slowest: Seconds after which a drawing is always allowed.
        worked: Returns the CPU time of this thread in seconds.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        share: float,
        slowest: float,
        worked: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._slowest, self._worked, self._clock = share, slowest, worked, clock
        self._since: tuple[float, float] | None = None

    def allows(self) -> bool:
        """Whether to draw now; if so, restart the measurement."""
        worked, now = self._worked(), self._clock()
        if self._since is not None:
            had, passed = worked - self._since[0], now - self._since[1]
            if had > self._share * passed and passed < self._slowest:
                return False
        self._since = worked, now
        return True
