"""Calls that wait outside of Python, as for other processes: this thread goes on handling signals."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

LOOK_S = 0.1
_NAME = "mptui-waits"


def interruptible(call: Callable[[], T], look: Callable[[], None]) -> T:
    """Call a function in a thread, and return its result.

    Python calls handlers of signals in the main thread, and only between two of its own instructions: a wait
    of torch in C++ would delay them to its end.

    Args:
        call: The function; it is left behind if `look` raises.
        look: Called every `LOOK_S`; may raise.
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
        look()
    return outcome.result()


def still_waits() -> bool:
    """Whether a call was left behind: an interpreter that shuts down under it may hang."""
    return any(thread.name == _NAME for thread in threading.enumerate())
