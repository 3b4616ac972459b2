"""Writes the files and the event at the end of a run."""

import contextlib
import traceback
from pathlib import Path
from typing import Any

from mptui.engine.trainer import Trainer
from mptui.errors import DiskError, RunDirectoryError
from mptui.events import RunFinished
from mptui.runs.session.exit_status import RunResult, status_of_error
from mptui.runs.store import directory
from mptui.runs.store.environment import redact
from mptui.runs.store.ownership import Ownership
from mptui.runs.store.writer import Records
from mptui.text import clean

TRACEBACK = "traceback.txt"


def result_of_loss(lost: RunDirectoryError, summary: dict[str, Any]) -> RunResult:
    """Return the result of a run that another process has taken over."""
    return RunResult(status_of_error(lost), lost.exit_code, summary, lost)


def note_figures(records: Records, trainer: Trainer) -> None:
    """Write the figures into the summary that only the loop has."""
    context, document = trainer.context, records.summary.document
    if (rate := context.reporter.median_rate()) is not None:
        document["samples_per_second"] = rate
    document["time"]["first_step_s"] = context.outcome.first_step_s
    document["time"]["data_wait_fraction"] = context.reporter.wait_fraction()
    records.summary.measure(context.device)


def write_files(run: Path, records: Records, ownership: Ownership, result: RunResult) -> None:
    """Write summary and traceback; write errors don't hide the result of the run."""
    document, cause, is_final = result.summary, result.error or result.bug, result.is_final()
    if is_final:
        document["status"], document["exit_code"] = result.status, result.exit_code
    if cause is not None and is_final:
        document["error"] = {"message": _message(result), "hint": _hint(result)}
    with contextlib.suppress(DiskError, RunDirectoryError):
        if cause is not None and ownership.lost() is None:
            trace = redact("".join(traceback.format_exception(cause)))
            directory.write_text(run / TRACEBACK, trace, ownership.change)
        records.write_summary()


def last_event(run: Path, result: RunResult, *, step: int, seconds: float) -> RunFinished:
    """Return the event of the end of a run."""
    return RunFinished(
        step=step,
        status=result.status,
        exit_code=result.exit_code,
        message=_message(result),
        hint=_hint(result),
        directory=str(run),
        seconds=seconds,
    )


def _message(result: RunResult) -> str:
    if result.error is not None:
        return redact(result.error.message)
    return redact(clean(repr(result.bug))) if result.bug is not None else ""


def _hint(result: RunResult) -> str:
    return result.error.hint if result.error is not None else ""
