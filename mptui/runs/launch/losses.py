"""Why a rank was lost; the account of starts."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
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
from mptui.events import Event, PhaseChanged, RunFinished, Warned
from mptui.io.files import open_regular
from mptui.processes.start import exit_code_name
from mptui.runs.session.ending import status_of_error
from mptui.runs.store import directory
from mptui.runs.store.directory import Ownership, read_summary, time_of
from mptui.runs.store.files import Records
from mptui.text import clean

# What is known of a rank that ended before its time, and which of several was the cause
# --------------------------------------------------------------------------------------

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
        said = f"its last output: {self.words}" if self.words else "it wrote nothing"
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


def lost_rank(rank: int, host: str, pid: int, code: int, *, stopped_s: float | None, log: Path) -> LostRank:
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


# What a launcher writes into the journal and the summary of a run whose ranks have ended
# ---------------------------------------------------------------------------------------

LOST = "rank_lost"
"""Code of the warning about a rank that ended before its time."""

_PATIENCE_S = 40.0
"""Time limit in seconds for a rank 0 on another node to end: its launcher kills it within 30 s."""
_LOOK_S = 0.2


def record_losses(run: Path, messages: Sequence[str], *, restarts: bool) -> None:
    """Add losses of ranks to the journal and the warnings of a run, and that all ranks start again."""
    with contextlib.suppress(DiskError, RunDirectoryError), _records(run) as (records, step):
        for message in messages:
            records.handle(Warned(step=step, code=LOST, message=message))
        if restarts:
            records.handle(PhaseChanged(step=step, phase="restarting"))


def record_end(run: Path, error: MptuiError) -> None:
    """Record that a run has failed, in its journal and summary."""
    _record_end(run, status_of_error(error), error.exit_code, message=error.message, hint=error.hint)


def record_stop(run: Path, code: int) -> None:
    """Record that a run was stopped before its rank 0 could tell."""
    _record_end(run, "stopped", code)


def _record_end(run: Path, status: str, code: int, *, message: str = "", hint: str = "") -> None:
    with contextlib.suppress(DiskError, RunDirectoryError), _records(run) as (records, step):
        document = records.summary.document
        document["status"], document["exit_code"] = status, code
        if message:
            document["error"] = {"message": message, "hint": hint}
        seconds, total = time_of(document)
        end: Event = RunFinished(
            step=step,
            status=status,
            exit_code=code,
            message=message,
            hint=hint,
            directory=str(run),
            seconds=seconds or 0.0,
            total_s=total,
        )
        records.handle(end)


@contextlib.contextmanager
def _records(run: Path) -> Iterator[tuple[Records, int]]:
    """Own the files of a run while none of its ranks lives; also yields its step.

    Raises:
        RunDirectoryError: A rank 0 on another node has not ended.
        DiskError: The run's directory can't be written.
    """
    with contextlib.ExitStack() as stack:
        ownership = _ownership(run)
        stack.callback(ownership.release)
        records = Records(run, ownership.change)
        stack.callback(records.close)
        document = records.summary.document
        document |= read_summary(run)
        yield records, document["optimizer_steps"]
        directory.write_json(run / directory.SUMMARY, document, ownership.change)


def _ownership(run: Path) -> Ownership:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Ownership(run, lambda: None)
        except RunDirectoryError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)
