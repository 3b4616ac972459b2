"""Options of the commands that use a trained run, and the opening of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.text import clean, clean_name

if TYPE_CHECKING:
    from mptui.data.core.types import Problem
    from mptui.lab.use.trained import Trained

Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="best|last",
        help="Checkpoint of the run; default: best, or last if the run has no best.",
        show_default=False,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--bad-sample-budget",
        metavar="SHARE",
        min=0,
        max=1,
        callback=o.finite,
        help="Largest fraction of unreadable files to leave out; default: any.",
        show_default=False,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace files that mptui has not written, or that were changed since."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="End with exit code 3 if a file can't be read, after all others.")
]

_USED = ("device", "batch_size", "workers", "precision")


def check_checkpoint(name: str | None) -> None:
    """Check the value of --checkpoint.

    Raises:
        BadParameter: It is neither best nor last.
    """
    from mptui.runs.store.directory import BEST, LAST

    if name is not None and name not in {BEST, LAST}:
        raise typer.BadParameter(f"--checkpoint {clean(name, 100)}: neither best nor last")


def settings_of(params: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the settings given for the use of a run: table.key -> (flag, value).

    How many files may be unreadable is not the run's to say: its budget is for training.
    """
    flags = o.overrides({name: params[name] for name in _USED if params.get(name) is not None})
    if "budget" in params:
        budget = 1.0 if params["budget"] is None else params["budget"]
        flags["data.bad_sample_budget"] = ("--bad-sample-budget", budget)
    return flags


def exit_code_of(problems: "Sequence[Problem]", *, strict: bool) -> int:
    """Return the exit code of a command that has left files out."""
    from mptui.errors import DataError

    return DataError.exit_code if strict and problems else 0


def tell_left_out(problem: "Problem") -> None:
    """Name a file that is left out."""
    typer.echo(clean(f"left out {clean_name(problem.path, 4096)}: {problem.reason}", 4500), err=True)


def given_data(data: str | None) -> dict[str, Any]:
    """Return the values of [data] that --data names; empty without it."""
    from mptui.config.given import data_flags

    flags = {} if data is None else data_flags(data, "--data")
    return {key.partition(".")[2]: value for key, (_, value) in flags.items()}


def opened(
    run: Path, checkpoint: str | None, settings: dict[str, tuple[str, Any]], *, trust_code: bool
) -> "Trained":
    """Open a run; `note` receives its warnings."""
    from mptui.hardware.memory import keep_freed_memory

    keep_freed_memory()  # before torch starts threads
    from mptui.lab.use.trained import open_trained

    return open_trained(run, checkpoint, settings, note=note, trust_code=trust_code)


def head(trained: "Trained", version: int) -> dict[str, Any]:
    """Return the beginning of a JSON document about the use of a run."""
    return {
        "version": version,
        "run": trained.run.name,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "task": trained.plan.task,
        "device": trained.plan.device.torch_name,
        "precision": trained.precision.name,
    }


def note(message: str) -> None:
    """Print a warning on stderr."""
    typer.echo(f"warning: {clean(message)}", err=True)
