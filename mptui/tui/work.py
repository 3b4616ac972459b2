"""Background work that no screen waits for, as a driver or a disk may hang.

The threads are daemons outside asyncio's executor, for which the end of an event loop would wait.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

_threads: list[threading.Thread] = []


def in_background(work: Callable[[], _T]) -> "asyncio.Future[_T]":
    """Call `work` in a new thread; return a future of its result for the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(put: Callable[[Any], None], value: object) -> None:
        def now() -> None:
            if not future.done():
                put(value)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(now)

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            settle(future.set_exception, error)
        else:
            settle(future.set_result, result)

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
