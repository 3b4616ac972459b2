"""What a screen may take of the processor while a run goes on beside it in the same interpreter."""

import time
from collections.abc import Callable


class Budget:
    """Allows a drawing once the thread has worked for no more than its share of the time since the last one.

    A drawing that costs more, in a larger terminal or with more curves, comes less often by itself.

    Args:
        share: Of the time, between 0 and 1.
        worked: Seconds of processor time that this thread has had.
        clock: Seconds.
    """

    def __init__(
        self,
        share: float,
        worked: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._worked, self._clock = share, worked, clock
        self._since: tuple[float, float] | None = None

    def allows(self) -> bool:
        """Whether to draw now; if so, the time counts from here."""
        worked, now = self._worked(), self._clock()
        if self._since is not None and worked - self._since[0] > self._share * (now - self._since[1]):
            return False
        self._since = worked, now
        return True
