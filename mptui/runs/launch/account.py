"""What a launcher writes into the journal and the summary of a run whose ranks have ended."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mptui.errors import DiskError, MptuiError, RunDirectoryError
from mptui.events import Event, PhaseChanged, RunFinished, Warned
from mptui.runs.session.exit_status import status_of_error
from mptui.runs.store import directory
from mptui.runs.store.directory import read_summary
from mptui.runs.store.ownership import Ownership
from mptui.runs.store.writer import Records

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
        end: Event = RunFinished(
            step=step,
            status=status,
            exit_code=code,
            message=message,
            hint=hint,
            directory=str(run),
            seconds=document["time"]["total_s"] or 0.0,
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
