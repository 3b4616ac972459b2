"""The end of a run: its status, exit code and last files; room for checkpoints on the disk."""

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptui import text as fmt
from mptui.config.schema import ModelConfig
from mptui.engine.checkpoint.files import cant_save, checkpoints, need_space
from mptui.engine.checkpoint.pointers import lost_words, steps_lost
from mptui.engine.guards.divergence import REPORT
from mptui.engine.job import Job
from mptui.engine.micro_batches import is_host_full, is_out_of_memory
from mptui.engine.optim.optimizers import frozen_at_last, frozen_parameters, hidden_matrices
from mptui.engine.ranks.group import Ranks
from mptui.engine.trainer import Trainer
from mptui.errors import (
    ConfigError,
    DiskError,
    DivergedError,
    MemoryExhaustedError,
    MptuiError,
    OwnCodeError,
    RankError,
    RunDirectoryError,
)
from mptui.events import (
    SCHEMA_VERSION,
    Diagnosed,
    Event,
    Paused,
    PhaseChanged,
    Recovered,
    Resumed,
    RunFinished,
    Warned,
    to_record,
)
from mptui.hardware.describe import hint_of_others
from mptui.models.layers import tensors_of
from mptui.models.zoo import parameter_count
from mptui.processes.rank_place import is_of_launcher, restarts_left
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.own_code import fault_in_library, fault_of, is_own
from mptui.runs.planning.plan import Plan
from mptui.runs.store import directory
from mptui.runs.store.directory import Ownership
from mptui.runs.store.files import Records, redact
from mptui.runs.view.doubts import at_chance, exploded, what_helps
from mptui.text import clean

# The room on the disk for the checkpoints of a run: whether they fit, and the wait for it
# ----------------------------------------------------------------------------------------


def check_space(folder: Path, job: Job) -> None:
    """Check that all checkpoints to keep, and the one being written, fit on the disk.

    Args:
        folder: Their folder in the run directory, which may not exist yet.
        job: The job to save.

    Raises:
        DiskError: They don't fit.
    """
    size = one = _checkpoint_bytes(job)
    otherwise = "choose another disk with --runs-dir"
    try:
        if kept := checkpoints(folder):
            otherwise = "keep fewer with checkpoint.keep"
        there = sum(file.stat().st_size for path in kept for file in path.iterdir())
        size = max(one, one * (_kept(job) + 1) - there)
        need_space(folder.parent, size)
    except OSError as error:
        raise cant_save(folder.parent, size, error, otherwise) from error


@contextlib.contextmanager
def waiting_for_disk(
    error: DiskError,
    emit: Callable[[Event], None],
    warn: Callable[[str, str], None],
    *,
    step: int,
    phase: str,
) -> Iterator[None]:
    """Report that a run waits for its disk, and when it continues.

    Args:
        error: Why a checkpoint can't be written.
        emit: Receives the events.
        warn: Called with the code and the message of a warning.
        step: Current step of the run.
        phase: Its phase, to which it returns.
    """
    since = time.monotonic()
    warn("disk", f"{error.message}; the run waits: {error.hint}")
    emit(PhaseChanged(step=step, phase="paused", detail="waiting for the disk"))
    emit(Paused(step=step, by="disk"))
    yield
    waited = f"saved after waiting {time.monotonic() - since:.0f} s; no step is lost"
    emit(Recovered(step=step, problem="disk", action=waited))
    emit(Resumed(step=step))
    emit(PhaseChanged(step=step, phase=phase))


def _kept(job: Job) -> int:
    """Return how many checkpoints are kept, as far as the run is planned to write them.

    Of `keep = "all"` one is counted: each save looks for space, and the run waits where there is none.
    """
    keep, training, every = job.config.checkpoint.keep, job.config.training, job.config.checkpoint.every_steps
    if keep == "all":
        return 1
    steps = training.epochs * job.train_loader.steps(training.accumulate)
    steps = min(steps, training.max_steps or steps)
    return min(keep, training.epochs + (steps // every if every else 0) + 1)


def _checkpoint_bytes(job: Job) -> int:
    """Return the size of a checkpoint of `job`: weights, buffers, optimizer state, averaged weights."""
    training = job.config.training
    frozen = set(frozen_parameters(job.model, frozen_at_last(training)))
    weights = parameter_count(job.model) - sum(p.numel() for p in frozen)
    spec = OPTIMIZERS[training.optimizer]
    state = spec.state_of(weights, sum(p.numel() for p in hidden_matrices(job.model) - frozen))
    average = 4 * weights * (spec.averages or training.ema_decay is not None)
    whole: int = sum(t.numel() * t.element_size() for t in tensors_of(job.model).values())
    return state + average + whole


# The result of a run: status of summary.json and exit code
# ---------------------------------------------------------

_MOST_SKIPPED = 0.5
"""Share of skipped steps above which a result is doubtful."""
_MANY_ROLLBACKS = 3

_STATUS: dict[type[BaseException], str] = {
    DivergedError: "diverged",
    MemoryExhaustedError: "out_of_memory",
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `error` is an expected error, `bug` any other exception."""

    status: str
    exit_code: int
    summary: dict[str, Any]
    error: MptuiError | None = None
    bug: BaseException | None = None

    def is_final(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether the run ends by this, and not later, after a restart by the launcher of its processes."""
        if self.error is None and self.bug is None:
            return True
        if is_of_launcher(environ):  # it restarts no one's mistake, and writes the end of all else
            return self.bug is None and not isinstance(self.error, RankError)
        return restarts_left(environ) == 0


def status_of_error(error: BaseException) -> str:
    """Return the status of a run that ended with this error."""
    return _STATUS.get(type(error), "failed")


def cause_of(
    caught: BaseException, ranks: Ranks, model: ModelConfig, trainer: Trainer | None
) -> BaseException:
    """Return the error to tell of an exception that ended the run; the exception itself if it is a bug.

    One whose text can't be had, as its own code fails, is told by the name of its class.
    """
    try:
        str(caught)
    except Exception as failed:  # noqa: BLE001 - whatever a person's exception does
        words = f"{type(caught).__name__}, whose text fails with {type(failed).__name__}"
        caught = RuntimeError(words).with_traceback(caught.__traceback__)
    if isinstance(caught, MptuiError):
        return ranks.reason(caught)
    return not_deterministic(caught) or out_of_memory(caught) or own_fault(caught, model, trainer) or caught


def exit_code(signal: int | None) -> int:
    """Return the exit code of a run that was stopped by a signal or a command."""
    return 128 + signal if signal else 0


def not_deterministic(error: BaseException) -> ConfigError | None:
    """Convert torch's error about a non-deterministic operation; None for other errors."""
    operation, _, rest = str(error).partition(" ")
    if not isinstance(error, RuntimeError):
        return None
    if "CUBLAS_WORKSPACE_CONFIG" in str(error):
        raised = ConfigError(
            "training.deterministic: this process had used cuBLAS before it was told to be deterministic",
            hint="set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts, or start a new process",
        )
    elif rest.startswith("does not have a deterministic"):
        raised = ConfigError(
            f"training.deterministic: {operation} has no deterministic implementation on this device",
            hint="choose another --model, or --set training.deterministic=false",
        )
    else:
        return None
    raised.__cause__ = error
    return raised


def own_fault(error: BaseException, model: ModelConfig, trainer: Trainer | None) -> OwnCodeError | None:
    """Convert an exception of the person's own code, or of a library that works for it; None for others.

    Args:
        error: The exception.
        model: The settings of network and task, which say which are the person's own.
        trainer: The trainer, if the run has got as far.
    """
    own = next((str(name) for name in (model.name, model.task) if is_own(name)), None)
    if (fault := fault_of(error)) is not None:
        return fault
    if own is None or trainer is None:
        return None
    forward = getattr(type(trainer.context.model), "forward", None) if is_own(model.name) else None
    return fault_in_library(error, own, forward)


def out_of_memory(error: BaseException) -> MemoryExhaustedError | None:
    """Convert an out-of-memory error of device or host; None for other errors."""
    if not (is_out_of_memory(error) or is_host_full(error)):
        return None
    first_line = (str(error).strip() or "out of memory").splitlines()[0]
    of_host = is_host_full(error) or "can't allocate memory" in str(error)
    raised = MemoryExhaustedError(
        f"out of host memory: {first_line}" if of_host else first_line,
        hint="use fewer --workers, --set data.cache=off, or a smaller --batch-size; or end other programs"
        if of_host
        else f"{hint_of_others()}use a smaller --batch-size with --set training.accumulate=N, "
        "--profile memory-limited, or a smaller data.image_size",
    )
    raised.__cause__ = error
    return raised


# Writes the files and the event at the end of a run, and the report of what may end it
# -------------------------------------------------------------------------------------

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
        from mptui.engine.memory.ledger import enough  # of torch's compiler, which other ends don't need

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
    error, (seconds, total) = former.get("error") or {}, directory.time_of(former)
    yield RunFinished(
        step=former.get("optimizer_steps") or 0,
        status=str(former["status"]),
        exit_code=former["exit_code"],
        message=clean(str(error.get("message", "")), 5000),
        hint=clean(str(error.get("hint", "")), 5000),
        directory=str(run),
        seconds=seconds or 0.0,
        total_s=total,
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
    run: Path,
    records: Records,
    ownership: Ownership,
    result: RunResult,
    *,
    former: dict[str, Any] | None,
    is_random: bool,
) -> None:
    """Write summary and traceback; write errors don't hide the result of the run.

    Args:
        run: The directory.
        records: What the run has written so far.
        ownership: Of the directory.
        result: How it ended.
        former: The summary before a resume that has not started, which stays; None: it has.
        is_random: Whether it began with random weights.
    """
    document, cause, is_final = result.summary, result.error or result.bug, result.is_final()
    if is_final:
        document["status"], document["exit_code"] = result.status, result.exit_code
        if records.trained_to is not None:  # once the last save has ended
            document["lost"] = steps_lost(run / directory.CHECKPOINTS, records.trained_to)
        document["concerns"] = concerns_of(document) if cause is None else []
        is_done = result.status == "completed" and cause is None
        document["advice"] = what_helps(document, is_random=is_random) if is_done else ""
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


def last_event(run: Path, result: RunResult, *, step: int, seconds: tuple[float, float]) -> RunFinished:
    """Return the event of the end of a run; `seconds` are those of this session and of all."""
    return RunFinished(
        step=step,
        status=result.status,
        exit_code=result.exit_code,
        message=_message(result),
        hint=_hint(result),
        directory=str(run),
        seconds=seconds[0],
        total_s=seconds[1],
        concerns=list(result.summary.get("concerns") or []),
    )


def concerns_of(document: Mapping[str, Any]) -> list[str]:
    """Return why the result of a run that ended as it should is doubtful, a phrase each.

    Args:
        document: Its summary.
    """
    told = []
    steps, skipped = document["optimizer_steps"], document["skipped_steps"]
    if skipped > _MOST_SKIPPED * steps > 0:
        told.append(f"{skipped:,} of {steps:,} steps were skipped, as their gradients were not finite")
    rollbacks = sum(each.get("kind") == "divergence" for each in document["recoveries"])
    if rollbacks >= _MANY_ROLLBACKS:
        told.append(f"it diverged and was rolled back {rollbacks} times")
    if (last := document["final"].get("val_loss")) is not None:
        told += filter(None, [exploded(last, document.get("lowest_val_loss"))])
    if document["status"] == "completed":
        best, data = document["best"], document["dataset"]
        known = {"classes": data["classes"] or 0, "samples": data["val_samples"]}
        told += filter(None, [at_chance(best["metric"], best["value"], **known)])
    return told


def _message(result: RunResult) -> str:
    cause = "" if result.bug is None else clean(repr(result.bug))
    if result.error is not None:
        cause = result.error.message
    return "; ".join(words for words in (redact(cause), lost_words(result.summary.get("lost"))) if words)


def _hint(result: RunResult) -> str:
    advice = str(result.summary.get("advice") or "")
    return result.error.hint if result.error is not None else advice and f"what would help most: {advice}"
