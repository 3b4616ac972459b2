"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

LIMIT_S = 300.0


def wait_until(condition: Callable[..., object], what: object = "", *, look_s: float = 0.01) -> None:
    """Wait until a condition holds; `what` names it where it never does."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, f"never came: {what() if callable(what) else what}"
        time.sleep(look_s)
