"""The result of a run: status of summary.json and exit code."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptui.config.schema import ModelConfig
from mptui.engine.guards.oom_errors import is_host_full, is_out_of_memory
from mptui.engine.ranks.group import Ranks
from mptui.engine.trainer import Trainer
from mptui.errors import (
    ConfigError,
    DivergedError,
    MemoryExhaustedError,
    MptuiError,
    OwnCodeError,
    RankError,
)
from mptui.hardware.describe import hint_of_others
from mptui.processes.rank_place import is_of_launcher, restarts_left
from mptui.registry.own_code import fault_in_library, fault_of, is_own

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
    if (fault := fault_of(error)) is not None or own is None or trainer is None:
        return fault
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
