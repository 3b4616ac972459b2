"""Child processes that end with their parent, however that ends."""

import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread that forked it ends; on Linux only.

    A process that is stopped, or busy in an import, is killed as well. What it forks in turn is not.

    Args:
        parent: The process that forked this one; where it has ended already, this one ends at once.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
