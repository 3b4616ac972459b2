"""Limits the CPU time of drawing while a run trains in the same interpreter."""

import time
from collections.abc import Callable


class Budget:
    """Allows a drawing when the thread has used no more than its share of the time since the last one.

    A drawing that costs more, in a larger terminal or with more curves, comes less often by itself, but never
    less often than each `slowest` seconds, whatever else the thread is busy with.

    Args:
        share: Of the time, between 0 and 1.
        slowest: Seconds after which a drawing is allowed in any case.
        worked: Seconds of processor time that this thread has had.
        clock: Seconds.
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
        """Whether to draw now; if so, the time is counted from here."""
        worked, now = self._worked(), self._clock()
        if self._since is not None:
            had, passed = worked - self._since[0], now - self._since[1]
            if had > self._share * passed and passed < self._slowest:
                return False
        self._since = worked, now
        return True
