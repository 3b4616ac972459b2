"""The use of a trained run: its options, and what commands say of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli import options as o
from mptui.text import clean, clean_name

if TYPE_CHECKING:
    from mptui.data.types import Problem
    from mptui.lab.use.trained import Trained

MIRROR = (
    "Average the probabilities of each image and its mirror image; of a run with vertical_flip or turn in "
    "data.augment, of these views too."
)
"""Help of --mirror."""

_USED = ("device", "batch_size", "workers", "precision")


class UsedRun(o.SettingOptions, o.OfRun):
    """A trained run, and how it is used; each command has its own of these options."""

    checkpoint: str | None = o.option(
        None, "best|last", "Checkpoint of the run; default: best, or last if the run has no best."
    )
    budget: float | None = o.option(
        None,
        "SHARE",
        "Largest fraction of unreadable files to leave out; default: any.",
        "--bad-sample-budget",
        min=0,
        max=1,
    )
    strict: bool = o.flag("End with exit code 3 if a file can't be read, after all others.")
    force: bool = o.flag("Replace files that mptui has not written, or that were changed since.")

    def check_checkpoint(self) -> None:
        """Check the value of --checkpoint.

        Raises:
            BadParameter: It is neither best nor last.
        """
        from mptui.runs.store.directory import BEST, LAST

        if self.checkpoint is not None and self.checkpoint not in {BEST, LAST}:
            raise typer.BadParameter(f"--checkpoint {clean(self.checkpoint, 100)}: neither best nor last")

    def opened(self, path: Path, settings: Mapping[str, tuple[str, Any]] | None = None) -> "Trained":
        """Open the run in `path`; `note` receives its warnings.

        Args:
            path: Its directory.
            settings: Settings to use it with; None: those that were given. How many files may be unreadable
                is not the run's to say: its budget is for training.
        """
        from mptui.hardware.host import keep_freed_memory

        keep_freed_memory()  # before torch starts threads
        from mptui.lab.use.trained import open_trained

        given = o.overrides({name: vars(self).get(name) for name in _USED})
        if "budget" in vars(self):
            budget = 1.0 if self.budget is None else self.budget
            given["data.bad_sample_budget"] = ("--bad-sample-budget", budget)
        used = dict(given if settings is None else settings)
        return open_trained(path, self.checkpoint, used, note=note, trust_code=self.trust_code)

    def given_data(self) -> dict[str, Any]:
        """Return the values of [data] that --data names; empty without it."""
        from mptui.config.resolve import data_flags

        flags = {} if self.data is None else data_flags(self.data, "--data")
        return {key.partition(".")[2]: value for key, (_, value) in flags.items()}


def exit_code_of(problems: "Sequence[Problem]", *, strict: bool) -> int:
    """Return the exit code of a command that has left files out."""
    from mptui.errors import DataError

    return DataError.exit_code if strict and problems else 0


def tell_left_out(problem: "Problem") -> None:
    """Name a file that is left out."""
    typer.echo(clean(f"left out {clean_name(problem.path, 4096)}: {problem.reason}", 4500), err=True)


def head(trained: "Trained") -> dict[str, Any]:
    """Return the beginning of a JSON document about the use of a run."""
    return {
        "run": trained.run.name,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "task": trained.plan.task,
        "device": trained.plan.device.torch_name,
        "device_name": trained.plan.device.name,
        "precision": trained.precision.name,
    }


def note(message: str) -> None:
    """Print a warning on stderr."""
    typer.echo(f"warning: {clean(message)}", err=True)
