"""Ends a process whose run ended while its worker thread still compiles.

An interpreter that shuts down under such a thread may crash, and would wait for the compilers.
"""

import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

WORKER = "mptui-session"
"""Name of the threads that train."""

_ON_ITS_WAY_S = 1.0


def worker_left() -> bool:
    """Whether the worker of a finished run is still busy; waits for one that is about to end."""
    workers = [thread for thread in threading.enumerate() if thread.name == WORKER]
    for thread in workers:
        thread.join(_ON_ITS_WAY_S)
    return any(thread.is_alive() for thread in workers)


def end_now(code: int) -> NoReturn:
    """End this process with `code`, and the compilers that it started."""
    import psutil

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.terminate()
    os._exit(code)
