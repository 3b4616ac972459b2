"""How a run ended, in the words of summary.json and the table of exit codes."""

from dataclasses import dataclass
from typing import Any

import torch

from mptui.engine.guards.oom_errors import is_host_full, is_out_of_memory
from mptui.errors import ConfigError, DivergedError, MemoryExhaustedError, MptuiError

_STATUS: dict[type[MptuiError], str] = {
    DivergedError: "diverged",
    MemoryExhaustedError: "out_of_memory",
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `error` is a person's mistake or the world's, `bug` anything else."""

    status: str
    exit_code: int
    summary: dict[str, Any]
    error: MptuiError | None = None
    bug: BaseException | None = None


def status_of_error(error: MptuiError) -> str:
    """The status of a run that this error ended."""
    return _STATUS.get(type(error), "failed")


def exit_code(signal: int | None) -> int:
    """The exit code of a run that was stopped, by a signal or by a command."""
    return 128 + signal if signal else 0


def not_deterministic(error: BaseException) -> ConfigError | None:
    """What a person is told of an operation that a deterministic run can't have; None of other errors."""
    operation, _, rest = str(error).partition(" ")
    if not isinstance(error, RuntimeError) or not rest.startswith("does not have a deterministic"):
        return None
    raised = ConfigError(
        f"training.deterministic: {operation} has no deterministic implementation on this device",
        hint="choose another --model, or --set training.deterministic=false",
    )
    raised.__cause__ = error
    return raised


def out_of_memory(error: BaseException) -> MemoryExhaustedError | None:
    """What a person is told where the device or the host ran out of memory; None of other errors."""
    if not (is_out_of_memory(error) or is_host_full(error)):
        return None
    first_line = (str(error).strip() or "out of memory").splitlines()[0]
    of_host = not isinstance(error, torch.OutOfMemoryError)
    raised = MemoryExhaustedError(
        f"out of host memory: {first_line}" if of_host else first_line,
        hint="use fewer --workers, --set data.cache=off, or a smaller --batch-size; or end other programs"
        if of_host
        else "use a smaller --batch-size with --set training.accumulate=N, --profile memory-limited, "
        "or a smaller data.image_size",
    )
    raised.__cause__ = error
    return raised
