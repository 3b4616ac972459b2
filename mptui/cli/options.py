"""Groups of options, declared once."""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import completion
from mptui.text import clean, clean_name

if TYPE_CHECKING:
    from mptui.data.types import Problem
    from mptui.lab.use.trained import Trained
    from mptui.runs.planning.plan import Request


# Flags of the commands that start runs, and the settings that they set
# ---------------------------------------------------------------------
# Values are read as text and checked by the schema, so that faults in flags, variables and files have the
# same messages.

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="Settings of the training: see `mptui profiles`.",
        autocompletion=completion.profiles,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        # names as text: importing the registry takes a twentieth of the time of --help
        help="A torchvision network (resnet50, …), timm/NAME, unet, diffusion_unet, vae, or MODULE:FUNCTION.",
        autocompletion=completion.models,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="pretrained|FILE",
        help="The network's published weights, or a local file; random without.",
        autocompletion=completion.weights,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Your loss as MODULE:NAME, or classification, segmentation, diffusion, reconstruction.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="shapes, a torchvision set (cifar10, …), a folder, or your MODULE:CLASS.",
    ),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Let your own MODULE:NAME run, from the current folder.")
]
Epochs = Annotated[str | None, typer.Option("--epochs", metavar="N", help="Passes over the training set.")]
MaxSteps = Annotated[
    str | None, typer.Option("--max-steps", metavar="N", help="Maximum number of optimizer steps.")
]
BatchSize = Annotated[str | None, typer.Option("--batch-size", metavar="N", help="Samples per micro-batch.")]
Lr = Annotated[
    str | None, typer.Option("--lr", metavar="RATE", help="Peak learning rate, not rescaled to the batch.")
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="auto|fp32|fp16|bf16", help="Number format, or float32, …"),
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Force torch.compile on or off.", show_default=False),
]
Workers = Annotated[
    str | None, typer.Option("--workers", metavar="N|auto", help="Processes that load and decode data.")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda[:N]|xpu|mps|N,N",
        help="Device to train on; 0,2: a process on each.",
    ),
]
PricePerHour = Annotated[
    str | None,
    typer.Option("--price-per-hour", metavar="PRICE", help="Price of an hour, for the cost of the run."),
]
Seed = Annotated[
    str | None, typer.Option("--seed", metavar="N", help="Seed for weights, order and augmentation.")
]
Download = Annotated[bool, typer.Option("--download", help="Download a torchvision set if it is missing.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Set any key of a profile, as training.optimizer=adamw; repeatable; --dry-run lists all keys.",
        autocompletion=completion.settings,
    ),
]
RunsDir = Annotated[
    Path,
    typer.Option("--runs-dir", metavar="DIR", envvar="MPTUI_RUNS_DIR", help="Folder of the runs."),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run in --runs-dir, its start, or its directory: ./NAME.",
        autocompletion=completion.runs,
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run of this --name if it exists.")]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background and return to the shell.")]
Isolate = Annotated[
    bool,
    typer.Option("--isolate", help="Train in a separate process, which a closed terminal doesn't end."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print all settings as TOML with their sources, and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and the result.")]

NprocPerNode = Annotated[
    str | None,
    typer.Option(
        "--nproc-per-node",
        metavar="N|gpu",
        help="Processes on this node, one for each device; gpu: all GPUs.",
    ),
]
Nnodes = Annotated[
    int | None, typer.Option("--nnodes", metavar="N", min=1, help="Nodes, each with its own launcher.")
]
RdzvEndpoint = Annotated[
    str | None,
    typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the launchers of several nodes meet."),
]
AccelerateConfig = Annotated[
    Path | None,
    typer.Option(
        "--accelerate-config",
        metavar="FILE",
        help="Processes, machines, GPUs and precision as in an accelerate file, unless given.",
    ),
]
ScaleBatch = Annotated[
    bool,
    typer.Option("--scale-batch", help="Multiply batch size and learning rate by the number of processes."),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts", metavar="N", min=0, help="Restarts from the last save after a process is lost."
    ),
]

DEFAULT_RUNS_DIR = Path("runs")


def finite(value: float | None) -> float | None:
    """Refuse NaN, which passes any range check, and infinity.

    Raises:
        BadParameter: The value is not finite.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


_TEXTS = {
    "model": "model.name",
    "weights": "model.weights",
    "task": "model.task",
    "precision": "precision.mode",
    "device": "hardware.device",
}
_NUMBERS = {
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "workers": "data.workers",
    "seed": "training.seed",
    "price_per_hour": "hardware.price_per_hour",
}

SETTING_OF_FLAG: dict[str, str] = {**_TEXTS, **_NUMBERS, "download": "data.download"}
"""Name of a flag -> the `table.key` that it sets to its value."""


def request_of(ctx: typer.Context, profile: str | None = None) -> "Request":
    """Collect a command's --profile (or `profile`, if given), flags and --set."""
    from mptui.runs.planning.plan import Request

    given = ctx.params
    return Request(
        profile or given.get("profile"),
        overrides(given),
        tuple(given.get("sets") or ()),
        os.environ,
        trust_code=bool(given.get("trust_code")),
    )


def overrides(given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the settings given by flags, for `mptui.config.resolve.resolve`: table.key -> (flag, value).

    Args:
        given: The parameters of the command by name, as in `typer.Context.params`; None and False: not
            given. Parameters that aren't settings are ignored.
    """
    from mptui.config.resolve import COMPILE_ON, data_flags

    flags = {
        key: (f"--{name.replace('_', '-')}", _number(value) if name in _NUMBERS else value)
        for name, key in SETTING_OF_FLAG.items()
        if (value := given.get(name)) is not None and value is not False
    }
    if (data := given.get("data")) is not None:
        flags |= data_flags(data, "--data")
    if (compiled := given.get("compile")) is not None:
        flags["speed.compile"] = ("--compile", COMPILE_ON) if compiled else ("--no-compile", "off")
    return flags


def _number(text: str) -> int | float | str:
    """Convert a flag's text to a number if possible; the schema reports any other text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


# Options of the commands that use a trained run, and the opening of it
# ---------------------------------------------------------------------

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
        callback=finite,
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
    flags = overrides({name: params[name] for name in _USED if params.get(name) is not None})
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
    from mptui.config.resolve import data_flags

    flags = {} if data is None else data_flags(data, "--data")
    return {key.partition(".")[2]: value for key, (_, value) in flags.items()}


def opened(
    run: Path, checkpoint: str | None, settings: dict[str, tuple[str, Any]], *, trust_code: bool
) -> "Trained":
    """Open a run; `note` receives its warnings."""
    from mptui.hardware.host import keep_freed_memory

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
