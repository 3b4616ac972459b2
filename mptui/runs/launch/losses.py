"""What is known of a rank that ended before its time, and which of several was the cause."""

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from mptui.errors import (
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    MemoryExhaustedError,
    RunDirectoryError,
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
    """

    rank: int
    host: str
    pid: int
    code: int
    stopped_s: float | None
    log: str
    words: str

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
        if rank.stopped_s is not None or (rank.code < 0 and rank.code != -SIGTERM):
            return 0
        if rank.code in REFUSED or rank.code == 1:
            return 1 if rank.code in REFUSED else 2
        return 4 if rank.code in SAVED or rank.code == -SIGTERM else 3

    return min(lost, key=consequence)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log that aren't empty, safe to show; none if it can't be read."""
    with contextlib.suppress(OSError), os.fdopen(open_regular(log), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return [clean(line, 300) for line in lines if line.strip()][-count:]
    return []


def last_words(log: Path) -> str:
    """Return the last line of a log; of the two lines of an error, the first."""
    lines = last_lines(log, 2)
    return next((line for line in lines if line.startswith("mptui: ")), "".join(lines[-1:]))
