"""Checks for a terminal, and reserves it for the screen."""

import os
import sys
from pathlib import Path
from types import TracebackType

from mptui.errors import ConfigError
from mptui.regular import open_regular
from mptui.runs.remote.daemonize import leave_session
from mptui.streams import lossy_stream
from mptui.tui.terminal import supervisor

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
        supervisor.tell_log(str(log.absolute()))
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

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Restore the streams; the descriptors too, unless the terminal is gone."""
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        supervisor.tell_left()
        if not self.lost:
            for copy, number in zip(self._copies, _STANDARD, strict=True):
                os.dup2(copy, number)

    def log_to(self, path: Path) -> None:
        """Append other output to `path`; drop it if the file can't be opened.

        May be called from any thread, and before the context is entered.
        """
        self._log = path
        supervisor.tell_log(str(path.absolute()))
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
