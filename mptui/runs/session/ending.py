"""Writes the files and the event at the end of a run, and the report of what may end it."""

import contextlib
import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mptui import format as fmt
from mptui.codec import to_record
from mptui.engine.checkpoint.pointers import lost_words, steps_lost
from mptui.engine.guards.divergence import REPORT
from mptui.engine.guards.oom_errors import is_host_full
from mptui.engine.trainer import Trainer
from mptui.errors import DiskError, MemoryExhaustedError, MptuiError, RunDirectoryError
from mptui.events import SCHEMA_VERSION, Diagnosed, Event, RunFinished, Warned
from mptui.runs.planning.plan import Plan
from mptui.runs.session.exit_status import RunResult, status_of_error
from mptui.runs.store import directory
from mptui.runs.store.environment import redact
from mptui.runs.store.ownership import Ownership
from mptui.runs.store.writer import Records
from mptui.text import clean

TRACEBACK = "traceback.txt"


def with_lever(error: MptuiError | None, plan: Plan, classes: int | None) -> MptuiError | None:
    """Return an error; if no sample fits into the device, with the setting that would have been enough.

    Args:
        error: The error.
        plan: The plan of the run.
        classes: Number of classes of its data; None: it was not known yet.
    """
    room = plan.device.memory_free
    if not isinstance(error, MemoryExhaustedError) or is_host_full(error.__cause__):
        return error
    if room is None or classes is None:
        return error
    memory = plan.config.memory
    if plan.config.guards.on_oom == "split":
        memory = memory.model_copy(update={"micro_batch": 1})
    if memory.budget_gib is not None:
        room = min(room, int(memory.budget_gib * (1 << 30)))
    config = plan.config.model_copy(update={"memory": memory})
    kind, precision = plan.device.kind, plan.precision.used
    try:
        from mptui.engine.memory.levers import enough  # of torch's compiler, which other ends don't need

        lever = enough(config, plan.task, device=kind, precision=precision, classes=classes, room=room)
    except Exception:  # noqa: BLE001 - what can't be counted must not keep the run from its end
        return error
    if lever is None:
        return error
    counted = MemoryExhaustedError(
        error.message,
        hint=f"--set {lever.setting} would be enough by the ledger: {fmt.size(lever.footprint.total)} of "
        f"{fmt.size(room)} ({lever.effect}); more with mptui memory",
    )
    counted.__cause__ = error.__cause__
    return counted


def result_of_loss(lost: RunDirectoryError, summary: dict[str, Any]) -> RunResult:
    """Return the result of a run that another process has taken over."""
    return RunResult(status_of_error(lost), lost.exit_code, summary, lost)


def former_end(run: Path) -> dict[str, Any] | None:
    """Return the summary of a run that has ended, which stays if its resume doesn't start; else None."""
    summary = directory.read_summary(run)
    return summary if "exit_code" in summary and summary.get("status") not in {None, "running"} else None


def ending_events(run: Path, finished: RunFinished, former: dict[str, Any] | None) -> Iterator[Event]:
    """Yield the events that a journal ends with: with the former end again, if a resume has not started."""
    if former is None or finished.status == "stopped":
        yield finished
        return
    told = f"this resume has not started: {finished.message}; {finished.hint}"
    yield Warned(step=finished.step, code="not_resumed", message=told)
    error, seconds = former.get("error") or {}, (former.get("time") or {}).get("total_s")
    yield RunFinished(
        step=former.get("optimizer_steps") or 0,
        status=str(former["status"]),
        exit_code=former["exit_code"],
        message=clean(str(error.get("message", "")), 5000),
        hint=clean(str(error.get("hint", "")), 5000),
        directory=str(run),
        seconds=seconds if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0,
    )


def note_figures(records: Records, trainer: Trainer) -> None:
    """Write the figures into the summary that only the loop has."""
    context, document = trainer.context, records.summary.document
    document["optimizer_steps"] = records.trained_to = context.state.step
    if (rate := context.reporter.run_throughput.rate) is not None:
        document["samples_per_second"] = rate
    document["time"]["first_step_s"] = context.outcome.first_step_s
    document["time"]["data_wait_fraction"] = context.reporter.wait_fraction()
    records.summary.measure(context.device)


def write_divergence(run: Path, event: Diagnosed, ownership: Ownership) -> None:
    """Write the report of a divergence; a write error is ignored, as the journal has it too."""
    report = {"version": SCHEMA_VERSION, **to_record(event)}
    with contextlib.suppress(DiskError, RunDirectoryError):
        directory.write_json(run / REPORT, report, ownership.change)


def write_files(
    run: Path, records: Records, ownership: Ownership, result: RunResult, former: dict[str, Any] | None
) -> None:
    """Write summary and traceback; write errors don't hide the result of the run.

    The summary is `former` if there is one: the run's before a resume that has not started.
    """
    document, cause, is_final = result.summary, result.error or result.bug, result.is_final()
    if is_final:
        document["status"], document["exit_code"] = result.status, result.exit_code
        if records.trained_to is not None:  # once the last save has ended
            document["lost"] = steps_lost(run / directory.CHECKPOINTS, records.trained_to)
    if cause is not None and is_final:
        document["error"] = {"message": _message(result), "hint": _hint(result)}
    with contextlib.suppress(DiskError, RunDirectoryError):
        if cause is not None and former is not None:
            directory.write_json(run / directory.SUMMARY, former, ownership.change)
            return
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
    cause = "" if result.bug is None else clean(repr(result.bug))
    if result.error is not None:
        cause = result.error.message
    return "; ".join(words for words in (redact(cause), lost_words(result.summary.get("lost"))) if words)


def _hint(result: RunResult) -> str:
    return result.error.hint if result.error is not None else ""
