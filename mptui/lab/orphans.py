"""Ends child processes when their parent ends, for any reason."""

import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process as soon as the thread that forked it ends; on Linux only.

    Also kills a process that is stopped or busy in an import, but not the processes that it forks.

    Args:
        parent: The process that forked this one; if it has already ended, this one ends at once.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
