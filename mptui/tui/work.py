"""Work that no screen waits for, as a driver or a disk may hang; the time that drawing may take."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

# Background work that no screen waits for, as a driver or a disk may hang
# ------------------------------------------------------------------------
# The threads are daemons outside asyncio's executor, for which the end of an event loop would wait.

_T = TypeVar("_T")

_threads: list[threading.Thread] = []


def in_background(work: Callable[[], _T]) -> "asyncio.Future[_T]":
    """Call `work` in a new thread; return a future of its result for the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def end(put: Callable[[Any], None], value: object) -> None:
        def now() -> None:
            if not future.done():
                put(value)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(now)

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            end(future.set_exception, error)
        else:
            end(future.set_result, result)

    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    thread = threading.Thread(target=run, name="mptui-background", daemon=True)
    _threads.append(thread)
    thread.start()
    return future


def busy() -> bool:
    """Whether any work has not finished yet."""
    return any(thread.is_alive() for thread in _threads)


def wait(timeout: float) -> bool:
    """Wait for all work; return whether it finished in time."""
    deadline = time.monotonic() + timeout
    for thread in _threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not busy()


# Limits the CPU time of drawing while a run trains in the same interpreter
# -------------------------------------------------------------------------


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
        self._share = share
        self._slowest = slowest
        self._worked = worked
        self._clock = clock
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
