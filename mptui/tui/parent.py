"""The small parent of the terminal UI: it waits, and puts the terminal right whatever kills its child.

A killed process can't restore anything: the shell would come back without echo, on the alternate screen, with
mouse reports for input. This imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType
from typing import Any

# Attributes off, whole lines, sync, resize, focus, paste and mouse reports off, keyboard protocol and
# alternate screen left, cursor shown.
RESTORE = (
    b"\x1b[0m\x1b[?7h\x1b[?2026l\x1b[?2048l\x1b[?1004l\x1b[?2004l"
    b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[<u\x1b[?1049l\x1b[?25h"
)

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def guarded(run: Callable[[], int]) -> int:
    """Call `run` in a child on this terminal; return its exit code in the child and in the parent.

    The parent sends SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 on, and stops when its child is stopped. A
    child that a signal killed is 128 + that signal, with the terminal as it was before.
    """
    attributes = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        return run()

    forwarded: set[int] = set()

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    status = _wait(child)
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        _restore(attributes, f"mptui was killed by signal {killer}\n  what became of its run: mptui runs\n")
        return 128 + killer
    if signal.SIGHUP in forwarded:  # the child turned away from a terminal that may still be there
        _restore(attributes, "")
    return os.waitstatus_to_exitcode(status)


def _wait(child: int) -> int:
    """Wait for the end of `child`; while it is stopped, so is this process, and the shell has its prompt."""
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        os.kill(os.getpid(), signal.SIGSTOP)


def _restore(attributes: list[Any], message: str) -> None:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError, termios.error):  # the terminal itself may be gone
        os.write(sys.stdout.fileno(), RESTORE)
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, attributes)
        os.write(sys.stderr.fileno(), message.encode())
