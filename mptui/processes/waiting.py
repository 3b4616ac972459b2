"""Waiting: a clock that stands still while this process is suspended; calls that signals interrupt."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# A clock that stands still while this process is suspended
# ---------------------------------------------------------
# A batch system that suspends a job, or a closed lid, stops all its processes at once. By the monotonic
# clock each would find, when it goes on, that the others have been silent for hours.


class AwakeClock:
    """Seconds in which this process could run, if it is called regularly.

    Args:
        longest_s: Longest time between two calls that counts; what is beyond it was an absence of its own.
        now: The clock of the machine, in seconds.
    """

    def __init__(self, longest_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = longest_s
        self._now = now
        self._last = now()
        self._seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds since the first call, without absences."""
        with self._lock:
            now = self._now()
            self._seconds += min(now - self._last, self._longest_s)
            self._last = now
            return self._seconds


# Calls that wait outside of Python, as for other processes: this thread goes on handling signals
# -----------------------------------------------------------------------------------------------

T = TypeVar("T")

LOOK_S = 0.1
_NAME = "mptui-waits"


def interruptible(call: Callable[[], T], on_wait: Callable[[], None]) -> T:
    """Call a function in a thread, and return its result.

    Python calls handlers of signals in the main thread, and only between two of its own instructions: a wait
    of torch in C++ would delay them to its end.

    Args:
        call: The function; it is left behind if `on_wait` raises.
        on_wait: Called every `LOOK_S`; may raise.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the calling thread
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name=_NAME, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        on_wait()
    return outcome.result()


def still_waits() -> bool:
    """Whether a call was left behind: an interpreter that shuts down under it may hang."""
    return any(thread.name == _NAME for thread in threading.enumerate())
