"""The parent process of the terminal UI, which restores the terminal however its child ends.

A process that is killed, or ended by native code, can't restore the terminal: the shell would have no echo,
the alternate screen, and mouse reports as input. Imports only modules that load fast.

The child tells the parent by a pipe: records that begin with their kind and end with a zero byte.
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

from mptui.text import clean

# Resets attributes, turns line wrap on; turns sync, resize, focus, paste and mouse reports off; leaves the
# keyboard protocol and the alternate screen; shows the cursor.
RESTORE = (
    b"\x1b[0m\x1b[?7h\x1b[?2026l\x1b[?2048l\x1b[?1004l\x1b[?2004l"
    b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[<u\x1b[?1049l\x1b[?25h"
)

SUSPENDED = b"mptui and the run in its process are suspended; to continue: fg\r\n"
SUSPENDED_ALONE = b"mptui is suspended, and the run goes on in its own process; to continue: fg\r\n"

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


_MOST_BYTES = 4096
_PARTS, _LOGS, _LEAVES, _ALONE = b"p", b"l", b"q", b"a"
"""Kinds of records: the child goes on in the background, with words for the person; the file that has what
libraries print; the child has left the screen, and restored the terminal itself; "y" if the run is in another
process."""

_TAIL_LINES = 15
"""Lines of that file shown after an end that the child could not tell of."""

_ON_ITS_WAY_S = 0.2
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2): PR_SET_PDEATHSIG

Part = Callable[[str], None]
"""Ends the parent with a message for the user, while the child continues in the background."""


def guarded(run: Callable[[Part], int]) -> int:
    """Call `run` in a child on this terminal; return its exit code in the child and in the parent.

    The parent forwards SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, and stops when its child is stopped. If
    the child ends without leaving the screen, the parent restores the terminal, prints the tail of the log,
    and returns the child's exit code (never 0), or 128 + the signal that killed it. If the child detaches,
    the parent returns 0 at once. If the parent is killed, the child gets SIGHUP, and restores the terminal.
    """
    attributes = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        return _as_child(run, said, attributes)

    os.close(said)
    forwarded: set[int] = set()

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    records = _Records(heard)
    status = _wait(child, records)
    gone = signal.SIGHUP in forwarded  # the child has released the terminal, which may still exist
    if status is None:
        _restore(attributes, records.last(_PARTS), clear=gone)
        return 0
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        told = f"mptui was killed by signal {-code}\n  state of its run: mptui runs\n"
    elif not gone and _LEAVES not in records.found:
        told = f"mptui was ended from within, with exit code {code}\n  state of its run: mptui runs\n"
    else:
        told = ""
    if told or gone:
        tail = _tail_of(records.last(_LOGS)) if told else b""
        _restore(attributes, tail + told.encode(), clear=True)
    if code == 0 and told:
        return 1
    return code if code >= 0 else 128 - code


class _Child:
    """The side of the child: what it tells, and the terminal that it restores without a parent."""

    def __init__(self, said: int, attributes: list[Any]) -> None:
        self._said, self._attributes, self._parent = said, attributes, os.getppid()
        self._terminal = os.dup(sys.stdout.fileno())  # the screen redirects the streams

    def tell(self, kind: bytes, words: str = "") -> None:
        """Write a record."""
        with contextlib.suppress(OSError):  # the parent was killed, or this process goes on without it
            os.write(self._said, kind + words.replace("\0", "").encode(errors="replace") + b"\0")

    def restore(self) -> None:
        """Restore the terminal if the parent was killed."""
        if os.getppid() != self._parent:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
                os.write(self._terminal, RESTORE)
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._attributes)


_child: _Child | None = None
"""Set in the child."""


def _as_child(run: Callable[[Part], int], said: int, attributes: list[Any]) -> int:
    """Call `run` in the child, and tell the parent how it goes."""
    global _child
    _child = _Child(said, attributes)
    _ask_for_hang_up(os.getppid())
    code = run(partial(_child.tell, _PARTS))
    tell_left()
    return code


def tell_log(path: str) -> None:
    """Tell the parent which file has what libraries print; without a parent, does nothing."""
    if _child is not None:
        _child.tell(_LOGS, path)


def tell_left() -> None:
    """Tell the parent that the screen is left, and the terminal restored; without a parent, does nothing."""
    if _child is not None:
        _child.tell(_LEAVES)


def tell_alone(alone: bool) -> None:
    """Tell the parent whether the run on the screen is in another process; without a parent, does nothing."""
    if _child is not None:
        _child.tell(_ALONE, "y" if alone else "")


def restore_alone() -> None:
    """Restore the terminal if the parent was killed, which would have done it."""
    if _child is not None:
        _child.restore()


def _ask_for_hang_up(parent: int) -> None:
    """Have the kernel send SIGHUP to this process when its parent ends; on Linux only."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGHUP)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGHUP)


class _Records:
    """What the child tells.

    Attributes:
        found: The last record of each kind.
    """

    def __init__(self, heard: int) -> None:
        self.heard, self.found, self._rest = heard, dict[bytes, bytes](), b""

    def read(self) -> bool:
        """Read what has been told; return whether more may come."""
        data = os.read(self.heard, _MOST_BYTES)
        *records, self._rest = (self._rest + data).split(b"\0")
        self.found |= {record[:1]: record[1:] for record in records}
        return bool(data)

    def last(self, kind: bytes) -> bytes:
        """Return the words of the last record of a kind."""
        return self.found.get(kind, b"")


def _tail_of(log: bytes) -> bytes:
    """Return the last lines of a log, safe to print."""
    try:
        with open(log, "rb") as file:  # noqa: PTH123 - pathlib takes time to load
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return b""
    return "".join(clean(line, 400) + "\r\n" for line in lines).encode()


def _wait(child: int, records: _Records) -> int | None:
    """Wait until `child` ends or detaches; return its status, None if it detaches.

    While the child is stopped, this process is stopped too, so that the shell shows its prompt.
    """
    bell, button = os.pipe()
    for end in (bell, button):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(button, warn_on_full_buffer=False)
    open_ends = [bell, records.heard]
    while True:
        ready, _, _ = select.select(open_ends, [], [])
        if records.heard in ready and not records.read():
            open_ends.remove(records.heard)
        if _PARTS in records.found:
            return None
        with contextlib.suppress(BlockingIOError):
            os.read(bell, _MOST_BYTES)
        pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
        if pid and not os.WIFSTOPPED(status):
            while records.heard in select.select(open_ends, [], [], 0)[0] and records.read():
                pass  # what it told before it ended
            return status
        if pid and _stays_stopped(child):
            with contextlib.suppress(OSError):
                alone = records.last(_ALONE)
                os.write(sys.stderr.fileno(), SUSPENDED_ALONE if alone else SUSPENDED)
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
