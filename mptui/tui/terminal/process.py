"""The terminal of a process: streams, supervisor, driver, and calls to a person who looks elsewhere."""

import contextlib
import gc
import os
import select
import signal
import sys
import termios
import time
import traceback
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from textual import constants
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from mptui.errors import ConfigError
from mptui.io.files import open_regular
from mptui.io.streams import lossy_stream
from mptui.processes.start import leave_session
from mptui.text import clean
from mptui.tui.terminal.background import QUESTION, Answers, TerminalBackground, can_be_asked

# Calls a person who looks at another window: the terminal's bell, or its notification by OSC 9 or OSC 777
# --------------------------------------------------------------------------------------------------------
# OSC 9 is iTerm2's, OSC 777 rxvt-unicode's; kitty, Ghostty and WezTerm read both, foot the latter. tmux
# rings the bell itself, and passes the others on in a sequence of its own, where `allow-passthrough` is on
# (tmux(1)).

CHOICE = "MPTUI_NOTIFY"
"""Variable that names the ways to call, separated by commas; unset: none."""

_LONGEST = 200


def _bell(_: str) -> str:
    return "\a"


def _osc9(words: str) -> str:
    # after the prefix, no text looks like a command of ConEmu's, which begin with a digit
    return f"\x1b]9;mptui: {words}\a"


def _osc777(words: str) -> str:
    return f"\x1b]777;notify;mptui;{words.replace(';', ',')}\a"


WAYS = {"bell": _bell, "osc9": _osc9, "osc777": _osc777}


def fault_of_choice(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what is wrong with the choice of the person; None: nothing."""
    unknown = [name for name in _chosen(environ) if name not in WAYS]
    if not unknown:
        return None
    near = get_close_matches(unknown[0], WAYS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(WAYS)}"
    return clean(f"{CHOICE}: {unknown[0]}: no way to notify; {hint}", 200)


def sequences(words: str, environ: Mapping[str, str]) -> str:
    """Return what calls a person with `words` on the terminal of this environment; "" without a choice."""
    words = clean(words, _LONGEST)
    called = [WAYS[name](words) for name in _chosen(environ) if name in WAYS]
    if "TMUX" in environ:
        called = [each if each == "\a" else _through_tmux(each) for each in called]
    return "".join(called)


def call_person(app: App[object], words: str, environ: Mapping[str, str] = os.environ) -> None:
    """Call a person with `words`, in the ways that they chose."""
    called = sequences(words, environ)
    if called and app._driver is not None:  # as Textual's bell
        app._driver.write(called)


def _chosen(environ: Mapping[str, str]) -> list[str]:
    names = (name.strip() for name in environ.get(CHOICE, "").split(","))
    return [name for name in dict.fromkeys(names) if name]


def _through_tmux(sequence: str) -> str:
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


# A driver for Textual that also handles an unannounced stop of the process
# -------------------------------------------------------------------------
# `kill -STOP` and a batch system's suspend give no notice, so Textual stays in application mode while
# stopped. At SIGCONT it starts application mode again: a second input thread takes half of the keys, and at
# the end the terminal attributes of the screen are restored instead of the original ones.
#
# Textual also does so within the signal handler, which deadlocks if it has interrupted a write to the queue
# that it writes to. So both handlers only schedule a call on the event loop.
#
# What a terminal sends is not always what Textual expects: a paste from a program with another encoding, a
# mouse report of the oldest kind, whose columns are bytes. None of it may end the screen.

_LOOK_S = 0.1
_MOST_BYTES = 4096

ESCAPE_S = 0.03
"""Time after which an escape alone is the key; Textual's 0.1 is felt. ESCDELAY names another, as for curses.

A terminal writes the characters of a sequence at once, and SSH sends them in one packet: what comes later is
another key.
"""

if "ESCDELAY" not in os.environ:
    constants.ESCAPE_DELAY = ESCAPE_S  # type: ignore[misc]


class SteadyDriver(LinuxDriver):
    """Reads any bytes; leaves application mode before starting it again, on the event loop."""

    def __init__(
        self,
        app: App[object],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._answers = Answers()

    def ask_background(self, environ: Mapping[str, str] = os.environ) -> None:
        """Ask the terminal for its background; the app gets a `TerminalBackground` if it answers in time."""
        if self.input_tty and can_be_asked(environ):
            self._answers.asked()
            self.write(QUESTION)
            self.flush()

    def stop_application_mode(self) -> None:
        """Leave the screen, after an answer on its way, which the shell would take for keys."""
        self._answers.wait()
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        """Read keys until the application ends. What is no UTF-8 becomes U+FFFD; nothing here raises."""
        parser, decoder = XTermParser(self._debug), getincrementaldecoder("utf-8")("replace")
        typed = ""
        while not self.exit_event.is_set():
            try:
                # what was typed may end with an escape, which is a key unless more comes in this time
                data = self._read(min(constants.ESCAPE_DELAY, _LOOK_S) if typed else _LOOK_S)
                if data == b"":  # the terminal is gone: the end of the program comes by a signal
                    self.exit_event.wait(_LOOK_S)
                typed, light = self._answers.take(decoder.decode(data or b""))
                if light is not None:
                    self._app.post_message(TerminalBackground(light))
                for event in (*parser.feed(typed), *parser.tick()) if typed else parser.tick():
                    self.process_message(event)
            except Exception:  # noqa: BLE001 - of one key; the others are read on
                traceback.print_exc()  # to the log
                parser = XTermParser(self._debug)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return columns and lines of the terminal itself: COLUMNS and LINES may be of another one."""
        try:
            columns, lines = os.get_terminal_size(self.fileno)
        except OSError:
            columns = lines = 0
        return (columns, lines) if columns and lines else super()._get_terminal_size()

    def _read(self, within_s: float) -> bytes | None:
        """Return what has been typed; None if nothing was in that time, b"" if the terminal is gone."""
        try:
            ready, _, _ = select.select([self.fileno], [], [], within_s)
            return os.read(self.fileno, _MOST_BYTES) if ready else None
        except OSError:
            return b""

    def _sigtstp_application(self, *_given: object) -> None:
        self._call_in_loop(super()._sigtstp_application)

    def _sigcont_application(self, *_given: object) -> None:
        self._call_in_loop(self._continue)

    def _call_in_loop(self, action: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def _continue(self) -> None:
        # set by Textual's own handler of SIGTSTP, which leaves application mode before it stops
        if self._auto_restart and not self._must_signal_resume:
            self.suspend_application_mode()
        super()._sigcont_application()


# Checks for a terminal, and reserves it for the screen
# -----------------------------------------------------

_STANDARD = (1, 2)


def check_terminal() -> None:
    """Check that there is a terminal to draw on.

    Raises:
        ConfigError: Input, output or error is not a terminal, or the terminal is dumb.
    """
    hint = "use `mptui run`, which needs no terminal"
    for name, stream in (("input", sys.__stdin__), ("output", sys.__stdout__), ("error", sys.__stderr__)):
        if stream is None or not stream.isatty():
            raise ConfigError(f"the terminal UI needs a terminal, but its {name} isn't one", hint=hint)
    if os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigError("the terminal UI needs more than a dumb terminal (TERM)", hint=hint)


def has_terminal() -> bool:
    """Whether there is a terminal to draw on."""
    try:
        check_terminal()
    except ConfigError:
        return False
    return True


class Terminal:
    """Context in which only the screen writes to the terminal.

    Libraries (cuDNN, image decoders, worker processes) write to file descriptors 1 and 2, which would corrupt
    a frame. So the screen uses copies of them, and 1 and 2 are redirected to a log.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        tell_log(str(log.absolute()))
        self._copies: list[int] = []
        self._streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self.lost = False

    def __enter__(self) -> "Terminal":
        """Redirect other output, and reserve the terminal for the screen."""
        self._streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        sys.stdout.flush()
        sys.stderr.flush()
        self._copies = [os.dup(number) for number in _STANDARD]
        out, err = (lossy_stream(copy) for copy in self._copies)
        sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = err  # type: ignore[misc]
        self._redirect()
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the streams; the descriptors too, unless the terminal is gone."""
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        tell_left()
        if not self.lost:
            for copy, number in zip(self._copies, _STANDARD, strict=True):
                os.dup2(copy, number)

    def log_to(self, path: Path) -> None:
        """Append other output to `path`; drop it if the file can't be opened.

        May be called from any thread, and before the context is entered.
        """
        self._log = path
        tell_log(str(path.absolute()))
        if self._copies:
            self._redirect()

    def _redirect(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            log = open_regular(self._log, flags)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY)
        for number in _STANDARD:
            os.dup2(log, number)
        os.close(log)

    def hang_up(self) -> None:
        """Release the terminal, which may be gone: redirect all its descriptors to `os.devnull`.

        Safe in a signal handler, also while a write to a stalled terminal hangs.
        """
        self.lost = True
        leave_session()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, *self._copies):
            os.dup2(nowhere, number)
        os.close(nowhere)


# The parent process of the terminal UI, which restores the terminal however its child ends
# -----------------------------------------------------------------------------------------
# A process that is killed, or ended by native code, can't restore the terminal: the shell would have no
# echo, the alternate screen, and mouse reports as input. Imports only modules that load fast.
#
# The child tells the parent by a pipe: records that begin with their kind and end with a zero byte.

# Resets attributes, turns line wrap on; turns sync, resize, focus, paste and mouse reports off; leaves the
# keyboard protocol and the alternate screen; shows the cursor.
RESTORE = (
    b"\x1b[0m\x1b[?7h\x1b[?2026l\x1b[?2048l\x1b[?1004l\x1b[?2004l"
    b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[<u\x1b[?1049l\x1b[?25h"
)

SUSPENDED = b"mptui and the run in its process are suspended; to continue: fg\r\n"
SUSPENDED_ALONE = b"mptui is suspended, and the run goes on in its own process; to continue: fg\r\n"

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


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
        self._said = said
        self._attributes = attributes
        self._parent = os.getppid()
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
    spare_searches()
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
        self.heard = heard
        self.found = dict[bytes, bytes]()
        self._rest = b""

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
    wakeup_read, wakeup_write = os.pipe()
    for end in (wakeup_read, wakeup_write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    open_ends = [wakeup_read, records.heard]
    while True:
        ready, _, _ = select.select(open_ends, [], [])
        if records.heard in ready and not records.read():
            open_ends.remove(records.heard)
        if _PARTS in records.found:
            return None
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup_read, _MOST_BYTES)
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


# Limits the time of searches for garbage, in which no key is answered and no step is made
# ----------------------------------------------------------------------------------------

LONG_SEARCH_S = 0.03
"""CPU seconds of a search through some 40,000 objects: those of modules, of which torch brings 300,000."""


def spare_searches() -> None:
    """Leave what a long search for garbage has found to be none out of the later ones.

    It is what modules consist of, and beside it little that is garbage later. A search takes 0.1 s for the
    objects of a screen's modules, and 0.4 s with those of torch.
    """
    gc.callbacks.append(_SparedSearch())


class _SparedSearch:
    """Measures each search; Python calls this at its beginning and at its end, in the thread of it."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > LONG_SEARCH_S:
            gc.freeze()
