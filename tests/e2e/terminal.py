"""The program on a real pseudo-terminal: its screen, its input, its end."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import string
import struct
import termios
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import psutil
import pyte

from mptui.events import Event
from mptui.processes import start as processes
from mptui.processes.start import MAIN
from mptui.runs.store.journal import NAME, read_events
from tests.program import server

DEADLINE_S = 180
LOOK_S = 0.02
_MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_SYNC_ASKED, _SYNC_ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
_GROUND_ASKED = b"\x1b]11;?"
_FRAME_BEGINS, _FRAME_ENDS, _LEFT = b"\x1b[?2026h", b"\x1b[?2026l", b"\x1b[?1049l"
_OURS = {"LC_ALL", "LC_CTYPE", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES"}
"""Environment variables that describe the terminal in which the tests run."""

_KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "shift+tab": "\x1b[Z",
    "space": " ",
    "backspace": "\x7f",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "pageup": "\x1b[5~",
    "pagedown": "\x1b[6~",
    "slash": "/",
    "question_mark": "?",
    "f1": "\x1bOP",
    "colon": ":",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "less_than_sign": "<",
    "comma": ",",
    "greater_than_sign": ">",
    "full_stop": ".",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    **{f"ctrl+{letter}": chr(ord(letter) & 31) for letter in string.ascii_lowercase},
}
"""What a terminal sends for a key that has a name."""

FINAL_MODES = {"1049": b"l", "25": b"h", "1000": b"l", "1003": b"l", "2004": b"l", "1004": b"l"}
"""Alternate screen off, cursor shown, no mouse, no bracketed paste, no focus reports."""


class Terminal:
    """The program on a pseudo-terminal; the test acts as the terminal and its user.

    The terminal has synchronized output: a frame is on the screen once all of it has arrived.

    It tells its background, `ground`, if there is one. If not `forked`, it is started by a new interpreter:
    then /proc shows its initial environment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size=(80, 24),
        pixels=(0, 0),
        environ=None,
        arguments=(),
        call=MAIN,
        forked=True,
        ground="",
    ) -> None:
        self.folder = folder
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.output = self._undrawn = b""
        self._ground = ground
        self._events: list[Event] = []
        self._read_to = 0
        settings = {
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(folder / "state"),
            **(environ or {}),
        }
        kept = {name: value for name, value in os.environ.items() if name not in _OURS}
        self.fd, follower = pty.openpty()
        # set the terminal's size before the program starts
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], *pixels))
        self.attributes = termios.tcgetattr(self.fd)
        start = server().start if forked else _fresh
        self._process = start(
            call, *arguments, streams=(follower,) * 3, environ=kept | settings, folder=str(folder)
        )
        os.close(follower)
        self.pid = self._process.pid

    def read(self, timeout: float = LOOK_S) -> bool:
        """Read available output; return whether there was any."""
        ready, _, _ = select.select([self.fd], [], [], timeout)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:  # the other side has ended
            time.sleep(timeout)
            return False
        self.output += data
        if _SYNC_ASKED in self.output[-len(data) - len(_SYNC_ASKED) :]:
            os.write(self.fd, _SYNC_ANSWER)
        if self._ground and _GROUND_ASKED in self.output[-len(data) - len(_GROUND_ASKED) :]:
            self.tell_ground(self._ground)
            self._ground = ""
        self._draw(data)
        return True

    def tell_ground(self, colour: str) -> None:
        """Answer what the background is."""
        os.write(self.fd, f"\x1b]11;{colour}\x1b\\".encode())

    def _draw(self, data: bytes) -> None:
        """Draw what was read, each frame once it is whole."""
        self._undrawn += data
        whole, begun, frame = self._undrawn.rpartition(_FRAME_BEGINS)
        if not begun or _FRAME_ENDS in frame or _LEFT in frame:
            whole, begun, frame = self._undrawn, b"", b""
        self._undrawn = begun + frame
        self._stream.feed(whole)

    def journal(self) -> list[Event]:
        """Return the events of the only run so far; each is parsed once."""
        for run in (self.folder / "runs").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                for end, events in read_events(run / NAME, self._read_to):
                    self._read_to = end
                    self._events += events
        return list(self._events)

    @property
    def drawn(self) -> bytes:
        """Return the output without a frame of which the end has not arrived."""
        return self.output.removesuffix(self._undrawn)

    @property
    def text(self) -> str:
        """Return the text on the screen."""
        columns = range(self.screen.columns)
        rows = (self.screen.buffer[row] for row in range(self.screen.lines))
        return "\n".join("".join(row[column].data for column in columns) for row in rows)

    def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Read until `condition` holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never came: {what}\n{self.text}")
            self.read()

    def shows(self, words: str) -> None:
        """Wait until `words` are on the screen."""
        self.until(lambda: words in self.text, words)

    def press(self, *keys: str) -> None:
        """Type keys."""
        for key in keys:
            self.send(key)

    def send(self, *keys: str) -> None:
        """Send keys in one packet, as a slow connection does."""
        os.write(self.fd, "".join(_KEYS.get(key, key) for key in keys).encode())

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def go_on(self) -> None:
        """Continue the program once it and its child have stopped, as `fg` does."""
        family = [self.child, psutil.Process(self.pid)]
        stopped = lambda: all(each.status() == psutil.STATUS_STOPPED for each in family)  # noqa: E731
        self.until(stopped, "the stop")
        for each in family:
            each.send_signal(signal.SIGCONT)

    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def exit_code(self) -> int:
        """Wait for the end, and read to the last byte."""
        self.until(self.ended, "the end")
        while self.read():
            pass
        code: int = self._process.wait(DEADLINE_S)
        return code

    @property
    def child(self) -> psutil.Process:
        """Return the process with the screen and the run; the one that was started only waits for it."""
        (child,) = psutil.Process(self.pid).children()
        return child

    def modes(self) -> dict[str, bytes]:
        """Return the terminal's private modes as the program left them: `h` set, `l` reset."""
        left: dict[str, bytes] = {}
        for numbers, what in _MODE.findall(self.output):
            left |= dict.fromkeys(numbers.decode().split(";"), what)
        return left

    def is_restored(self) -> bool:
        """Whether the terminal is as it was before the program."""
        modes = self.modes()
        same = termios.tcgetattr(self.fd)[:4] == self.attributes[:4]
        return same and all(modes.get(number, state) == state for number, state in FINAL_MODES.items())

    def close(self) -> None:
        """Close the terminal, as a lost connection does."""
        os.close(self.fd)
        self.fd = -1

    def end(self) -> None:
        """End all its processes."""
        family = []
        if psutil.pid_exists(self.pid):
            parent = psutil.Process(self.pid)
            family = [*parent.children(recursive=True), parent]
        for process in family:
            if process.is_running():
                process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        if self.fd >= 0:
            self.close()


def _fresh(call, *arguments, streams, environ, folder):
    stdin, stdout, stderr = streams
    pipes = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    take = partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
    return processes.start(call, *arguments, **pipes, env=environ, cwd=folder, preexec_fn=take)


def threads_of(pid: int) -> set[int]:
    """Return the threads of a process."""
    return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}


def busy_share(pid: int, threads: Collection[int] | None = None) -> float:
    """Return the share of a processor that threads of a process, or all of them, take during half a second.

    Threads that end meanwhile don't count.
    """

    def used() -> dict[int, int]:
        used_ns = {}
        for thread in threads_of(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                nanoseconds, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                used_ns[thread] = int(nanoseconds)
        return used_ns

    before, began = used(), time.monotonic()
    time.sleep(0.5)
    after, seconds = used(), time.monotonic() - began
    counted = after.keys() if threads is None else after.keys() & set(threads)
    return sum(after[thread] - before.get(thread, 0) for thread in counted) / 1e9 / seconds
