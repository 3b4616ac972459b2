"""The parent process of the terminal UI, which restores the terminal if its child is killed.

A killed process can't restore the terminal: the shell would have no echo, the alternate screen, and mouse
reports as input. Imports only modules that load fast.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

# Resets attributes, turns line wrap on; turns sync, resize, focus, paste and mouse reports off; leaves the
# keyboard protocol and the alternate screen; shows the cursor.
RESTORE = (
    b"\x1b[0m\x1b[?7h\x1b[?2026l\x1b[?2048l\x1b[?1004l\x1b[?2004l"
    b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[<u\x1b[?1049l\x1b[?25h"
)

SUSPENDED = b"mptui and the run in its process are suspended; to continue: fg\r\n"

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


_WORDS = 4096
_ON_ITS_WAY_S = 0.2

Part = Callable[[str], None]
"""Ends the parent with a message for the user, while the child continues in the background."""


def guarded(run: Callable[[Part], int]) -> int:
    """Call `run` in a child on this terminal; return its exit code in the child and in the parent.

    The parent forwards SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, and stops when its child is stopped. If
    a signal kills the child, the parent restores the terminal and returns 128 + the signal. If the child
    detaches, the parent returns 0 at once.
    """
    attributes = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        return run(partial(_part, said))

    os.close(said)
    forwarded: set[int] = set()

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    outcome = _wait(child, heard)
    gone = signal.SIGHUP in forwarded  # the child has released the terminal, which may still exist
    if isinstance(outcome, bytes):
        _restore(attributes, outcome, clear=gone)
        return 0
    if os.WIFSIGNALED(outcome):
        killer = os.WTERMSIG(outcome)
        told = f"mptui was killed by signal {killer}\n  state of its run: mptui runs\n"
        _restore(attributes, told.encode(), clear=True)
        return 128 + killer
    if gone:
        _restore(attributes, b"", clear=True)
    return os.waitstatus_to_exitcode(outcome)


def _part(said: int, words: str) -> None:
    with contextlib.suppress(OSError):  # the parent was killed
        os.write(said, words.encode(errors="replace"))
    os.close(said)


def _wait(child: int, heard: int) -> int | bytes:
    """Wait until `child` ends or detaches; return its status or its message.

    While the child is stopped, this process is stopped too, so that the shell shows its prompt.
    """
    bell, button = os.pipe()
    for end in (bell, button):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(button, warn_on_full_buffer=False)
    open_ends = [bell, heard]
    while True:
        ready, _, _ = select.select(open_ends, [], [])
        if heard in ready:
            if words := os.read(heard, _WORDS):
                return words
            open_ends.remove(heard)
        with contextlib.suppress(BlockingIOError):
            os.read(bell, _WORDS)
        pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
        if pid and not os.WIFSTOPPED(status):
            return status
        if pid and _stays_stopped(child):
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), SUSPENDED)
            os.kill(os.getpid(), signal.SIGSTOP)


def _stays_stopped(child: int) -> bool:
    """Whether the child stays stopped, and is not just being continued together with this process."""
    time.sleep(_ON_ITS_WAY_S)
    try:
        with open(f"/proc/{child}/stat", "rb") as stat:  # noqa: PTH123 - pathlib takes time to load
            return stat.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:  # no Linux
        return True


def _restore(attributes: list[Any], message: bytes, *, clear: bool) -> None:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
        if clear:
            os.write(sys.stdout.fileno(), RESTORE)
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, attributes)
        os.write(sys.stderr.fileno(), message)
