"""Calls that wait outside of Python, as for other processes: this thread goes on handling signals."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

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
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again by the calling thread
            outcome.append((None, error))

    thread = threading.Thread(target=work, name=_NAME, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        look()
    (result, error) = outcome[0]
    if error is not None:
        raise error
    found: T = result
    return found


def still_waits() -> bool:
    """Whether a call was left behind: an interpreter that shuts down under it may hang."""
    return any(thread.name == _NAME for thread in threading.enumerate())
