"""The flags of whatever starts a run, and what each of them sets.

Values are taken as text and checked by the schema, so that a flag, a variable and a file are told of a fault
in the same words.
"""

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import completion

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="How to train: see `mptui profiles`.",
        autocompletion=completion.profiles,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A torchvision network (resnet50, vit_b_16, …), unet, or diffusion_unet.",
        autocompletion=completion.models,
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="NAME|PATH", help="shapes, a torchvision set (cifar10, …), or a folder."),
]
Epochs = Annotated[str | None, typer.Option("--epochs", metavar="N", help="Passes over the training set.")]
MaxSteps = Annotated[
    str | None, typer.Option("--max-steps", metavar="N", help="Optimizer steps to stop after at the latest.")
]
BatchSize = Annotated[
    str | None, typer.Option("--batch-size", metavar="N", help="Samples that go through at once.")
]
Lr = Annotated[str | None, typer.Option("--lr", metavar="RATE", help="Peak learning rate, taken as it is.")]
Precision = Annotated[
    str | None, typer.Option("--precision", metavar="auto|fp32|fp16|bf16", help="The number format.")
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile", help="Compile even if it can't repay itself, or never.", show_default=False
    ),
]
Workers = Annotated[
    str | None, typer.Option("--workers", metavar="N|auto", help="Processes that read the data.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="auto|cpu|cuda[:N]|xpu|mps", help="What to train on.")
]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Everything random derives from it.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a torchvision set that is not there.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Any key of a profile; may be repeated."),
]
RunsDir = Annotated[
    Path,
    typer.Option("--runs-dir", metavar="DIR", envvar="MPTUI_RUNS_DIR", help="Where runs are kept."),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's name, the start of it, or its directory.",
        autocompletion=completion.runs,
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The run's name.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run of this --name, if it is there.")]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background; the shell is free at once.")]
Isolate = Annotated[
    bool,
    typer.Option("--isolate", help="Train in a process of its own, which a closed terminal leaves alone."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print each value as TOML and where it came from, and end.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.")]

DEFAULT_RUNS_DIR = Path("runs")


def finite(value: float | None) -> float | None:
    """Refuse nan, which no range refuses, and infinity.

    Raises:
        BadParameter: It is one of these.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number to go by")
    return value


_TEXTS = {"model": "model.name", "precision": "precision.mode", "device": "hardware.device"}
_NUMBERS = {
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "workers": "data.workers",
    "seed": "training.seed",
}


def request_of(ctx: typer.Context, profile: str | None = None) -> "Request":
    """What a command was asked with: its --profile, or `profile` in place of it, its flags and its --set."""
    from mptui.runs.planning.plan import Request

    given = ctx.params
    return Request(
        profile or given.get("profile"), overrides(given), tuple(given.get("sets") or ()), os.environ
    )


def overrides(given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """What the flags set, for `mptui.config.merge.resolve`: table.key -> (the flag, its value).

    Args:
        given: The parameters of the command by name, as in `typer.Context.params`; None: not given. Those
            that are no setting of a run are left alone.
    """
    from mptui.config.given import COMPILE_ON, data_flags

    flags = {
        key: (f"--{name.replace('_', '-')}", _number(given[name]) if name in _NUMBERS else given[name])
        for name, key in {**_TEXTS, **_NUMBERS}.items()
        if given.get(name) is not None
    }
    if (data := given.get("data")) is not None:
        flags |= data_flags(data, "--data")
    if (compiled := given.get("compile")) is not None:
        flags["speed.compile"] = ("--compile", COMPILE_ON) if compiled else ("--no-compile", "off")
    if given.get("download"):
        flags["data.download"] = ("--download", True)
    return flags


def _number(text: str) -> int | float | str:
    """The number that a flag gives; other text is left for the schema, which says what is wanted."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
