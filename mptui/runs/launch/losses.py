"""What is known of a rank that ended before its time, and which of several was the cause."""

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from mptui.errors import (
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    MemoryExhaustedError,
    MptuiError,
    RunDirectoryError,
    error_of_code,
)
from mptui.processes.child import exit_code_name
from mptui.regular import open_regular
from mptui.text import clean

SAVED = frozenset({130, 143})
"""Exit codes of a rank that a signal stopped, and that saved first."""

REFUSED = frozenset(
    error.exit_code
    for error in (ConfigError, DataError, DivergedError, MemoryExhaustedError, RunDirectoryError, DiskError)
)
"""Exit codes of errors that a restart would meet again."""

_ERROR = "mptui: "
"""Begin of an error that isn't a bug."""
_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRank:
    """A rank that ended while others still trained.

    Attributes:
        rank: Its number.
        pid: Its process on `host`.
        code: Its exit code as `subprocess` reports it, negative for a signal.
        stopped_s: Seconds for which it was suspended before it was killed for that; None: it was not.
        log: File with its output.
        words: The last line that it wrote.
        error: The error that it told at its end; None: it was killed, or met a bug.
    """

    rank: int
    host: str
    pid: int
    code: int
    stopped_s: float | None
    log: str
    words: str
    error: MptuiError | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether it ended by a person's mistake, which a restart would meet again."""
        return self.code in REFUSED or (self.code == 1 and self.error is not None)

    @property
    def was_killed(self) -> bool:
        """Whether another process killed it."""
        return self.stopped_s is not None or (self.code < 0 and self.code != -SIGTERM)

    @property
    def text(self) -> str:
        """One sentence for a person."""
        if self.stopped_s is not None:
            how = f"was suspended (SIGSTOP) for {self.stopped_s:.0f} s and was killed"
        elif self.code < 0:
            how = f"was killed by {exit_code_name(self.code)}"
        else:
            how = f"ended with exit {exit_code_name(self.code)}"
        said = f"its last words: {self.words}" if self.words else "it wrote nothing"
        return f"rank {self.rank} (process {self.pid} on {self.host}) {how}; {said} ({self.log})"


def cause_of(lost: Collection[LostRank]) -> LostRank:
    """Return the rank whose end is the reason for that of the others.

    The others lose their connection or are asked to end; a rank that was killed, that names a known error or
    that met a bug has a reason of its own.
    """

    def consequence(rank: LostRank) -> int:
        if rank.was_killed:
            return 0
        if rank.is_refusal or rank.code == 1:
            return 1 if rank.is_refusal else 2
        return 4 if rank.code in SAVED or rank.code == -SIGTERM else 3

    return min(lost, key=consequence)


def lost_rank(rank: int, host: str, pid: int, code: int, stopped_s: float | None, log: Path) -> LostRank:
    """Return what is known of a rank, also from its log; see `LostRank`."""
    lines = _last_lines(log)
    error = _last_error(lines, code)
    words = lines[-1] if lines else ""
    return LostRank(
        rank=rank,
        host=host,
        pid=pid,
        code=code,
        stopped_s=stopped_s,
        log=f"{log.parent.name}/{log.name}",
        words=words if error is None else _ERROR + error.message.partition("\n")[0],
        error=error,
    )


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a log that aren't empty, safe to show; none if it can't be read."""
    with contextlib.suppress(OSError), os.fdopen(open_regular(log), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return [clean(line, 300) for line in lines if line.strip()]
    return []


def _last_error(lines: Sequence[str], code: int) -> MptuiError | None:
    """Return the error at the end of a log: its message begins with the program's name, a hint ends it."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
    told = lines[starts[-1] :] if starts and code > 0 else []
    while told and not told[-1].startswith("  "):  # warnings of libraries
        told = told[:-1]
    if not told or any(line.startswith("Traceback") for line in told):
        return None
    return error_of_code(code)("\n".join(told[:-1]).removeprefix(_ERROR), hint=told[-1].strip())
