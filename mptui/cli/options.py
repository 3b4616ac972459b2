"""Options of the commands, declared once as attributes of classes, and what they set."""

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from mptui.cli import completion
from mptui.errors import ConfigError
from mptui.processes.rank_place import MOST_RESTARTS

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request


_T = TypeVar("_T")
_R = TypeVar("_R")


# Options as attributes of classes, and their expansion into the parameters of commands
# -------------------------------------------------------------------------------------


class Options:
    """Options that a command receives as one object; subclasses declare them as attributes.

    Options that the command doesn't have keep their defaults.
    """

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)  # making methods for each class takes time

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - each has a type of its own
        vars(self).update(given)


def option(default: _T, metavar: str, help: str, *flags: str, **more: Any) -> _T:  # noqa: ANN401 - typer's own
    """Declare an option with a value.

    Args:
        default: The value if it is not given.
        metavar: The word for its value in the help.
        help: What it is.
        flags: Its names; without, the attribute's.
        more: Arguments of `typer.Option`.
    """
    return field(default=default, metadata={"flags": flags, "metavar": metavar, "help": help, **more})


def required_option(metavar: str, help: str, *flags: str, **more: Any) -> Any:  # noqa: ANN401 - as declared
    """Declare an option that a command needs, as `option` does."""
    return option(MISSING, metavar, help, *flags, **more)


def flag(help: str, *flags: str, **more: Any) -> bool:  # noqa: ANN401 - typer's own
    """Declare an option without a value, false if it is not given."""
    return option(False, "", help, *flags, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:  # noqa: ANN401 - typer's own
    """Declare a positional argument, which is required unless it has a `default`.

    Args:
        metavar: The word for its value in the help.
        help: What it is.
        more: `default`, and arguments of `typer.Argument`.
    """
    default = more.pop("default", MISSING)
    return field(default=default, metadata={"flags": None, "metavar": metavar, "help": help, **more})


def command(function: Callable[..., _R]) -> Callable[..., _R]:
    """Return a command with the options of its groups as parameters, for typer.

    Of a parameter of type `Annotated[GROUP, "NAME NAME …"]`, the named ones alone, in this order.
    """
    groups: dict[str, tuple[type[Options], list[str]]] = {}
    expanded: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        group, *names = get_args(parameter.annotation) or [parameter.annotation]
        if not issubclass(group, Options):
            expanded.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        declared = {each.name: each for each in fields(group)}
        offered = names[0].split() if names else list(declared)
        expanded += [_parameter(declared[name]) for name in offered]
        groups[parameter.name] = group, offered

    @wraps(function)
    def call(**given: Any) -> _R:  # noqa: ANN401 - by name, as typer calls it
        objects = {
            name: group(**{each: given.pop(each) for each in offered})
            for name, (group, offered) in groups.items()
        }
        return function(**objects, **given)

    call.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    return call


def _parameter(declared: "Field[Any]") -> inspect.Parameter:
    """Return a declared option as a parameter that typer understands."""
    facts = dict(declared.metadata)
    flags = facts.pop("flags")
    if float in (declared.type, *get_args(declared.type)):
        facts["callback"] = _finite
    if words := completion.words_in(facts["metavar"]):
        facts.setdefault("autocompletion", words)
    facts["metavar"] = facts["metavar"] or None
    info = (
        typer.Argument(**facts)
        if flags is None
        else typer.Option(*(flags or [f"--{declared.name.replace('_', '-')}"]), **facts)
    )
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if declared.default is MISSING else declared.default,
        annotation=Annotated[declared.type, info],
    )


def numbers(flag: str, given: str, allowed: range, what: str, *, example: str) -> list[int]:
    """Return the numbers of an option that lists them, `N,…`, in order.

    Raises:
        ConfigError: They are not allowed, or none.
    """
    parts = [part.strip() for part in given.split(",")]
    found = sorted({int(part) if part.isascii() and part.isdecimal() else 0 for part in parts})
    if not allowed[0] <= found[0] <= found[-1] <= allowed[-1]:
        raise ConfigError(
            f"{flag} {given}: not {what} from {allowed[0]} to {allowed[-1]:,}",
            hint=f"separate them by commas: {example}",
        )
    return found


def _finite(value: float | None) -> float | None:
    """Refuse NaN, which passes any range check, and infinity.

    Raises:
        BadParameter: The value is not finite.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


# Options of several commands
# ---------------------------


_TRAINING = {"rich_help_panel": "The training"}
RUN = {"rich_help_panel": "The run"}
PROCESSES = {"rich_help_panel": "Several processes"}
"""Headings of the help, for commands with many options."""


class SettingOptions(Options):
    """Options that give settings of a run, of which each command has its own.

    Values are read as text and checked by the schema, so that faults in flags, variables and files have the
    same messages.
    """

    profile: str | None = option(
        None,
        "NAME|FILE",
        "Settings of the training: see `mptui profiles`.",
        autocompletion=completion.profiles,
    )
    model: str | None = option(
        None,
        "NAME",
        # names as text: importing the registry takes a twentieth of the time of --help
        "A torchvision network (resnet50, …), timm/NAME, unet, diffusion_unet, vae, or MODULE:FUNCTION.",
        autocompletion=completion.models,
    )
    data: str | None = option(
        None, "NAME|PATH", "shapes, a torchvision set (cifar10, …), a folder, or your MODULE:CLASS."
    )
    epochs: str | None = option(None, "N", "Passes over the training set.")
    batch_size: str | None = option(None, "N", "Samples per batch, of all processes together.")
    lr: str | None = option(None, "RATE", "Peak learning rate, not rescaled to the batch.")
    precision: str | None = option(None, "auto|fp32|fp16|bf16", "Number format, or float32, …")
    device: str | None = option(
        None, "auto|cpu|cuda[:N]|xpu|mps|N,N", "Device to train on; 0,2: a process on each."
    )
    workers: str | None = option(None, "N|auto", "Processes that load and decode data.")
    sets: list[str] | None = option(
        None,
        "TABLE.KEY=VALUE",
        "Set any key of a profile, as training.optimizer=adamw; repeatable; keys: `mptui profiles keys`.",
        "--set",
        autocompletion=completion.settings,
    )
    weights: str | None = option(
        None,
        "pretrained|FILE",
        "The network's published weights, or a local file; random without.",
        **_TRAINING,
    )
    task: str | None = option(
        None,
        "NAME",
        "Your loss as MODULE:NAME, or classification, segmentation, diffusion, reconstruction.",
        autocompletion=completion.tasks,
        **_TRAINING,
    )
    time: str | None = option(
        None, "DURATION", "Train for so long, as 30m or 2h; the schedule ends with it.", **_TRAINING
    )
    max_steps: str | None = option(None, "N", "Maximum number of optimizer steps.", **_TRAINING)
    compile: bool | None = option(
        None, "", "Force torch.compile on or off.", "--compile/--no-compile", **_TRAINING
    )
    seed: str | None = option(None, "N", "Seed for weights, order and augmentation.", **_TRAINING)
    download: bool = flag("Download a torchvision set if it is missing.", **_TRAINING)
    trust_code: bool = flag("Let your own MODULE:NAME run, from the current folder.", **_TRAINING)
    price_per_hour: str | None = option(
        None, "PRICE", "Price of an hour, for the cost of the run.", **_TRAINING
    )

    def request(self, profile: str | None = None) -> "Request":
        """Return what these settings ask for, with another profile if that is given."""
        from mptui.runs.planning.plan import Request

        return Request(
            profile or self.profile,
            overrides(vars(self)),
            tuple(self.sets or ()),
            os.environ,
            trust_code=self.trust_code,
        )


COUNTED = "profile model task data batch_size precision device sets trust_code"
"""Settings of a training that is counted and not run."""


class InRunsDir(Options):
    """The folder of the runs."""

    runs_dir: Path = option(Path("runs"), "DIR", "Folder of the runs.", envvar="MPTUI_RUNS_DIR", **RUN)


class NewRun(InRunsDir):
    """A run that begins."""

    name: str | None = option(None, "NAME", "Name of the run.")


class OfRun(InRunsDir):
    """A run that there is."""

    run: str = argument(
        "RUN",
        "Name of a run in --runs-dir, its start, or its directory: ./NAME.",
        autocompletion=completion.runs,
    )

    def path(self) -> Path:
        """Return the run's directory.

        Raises:
            RunDirectoryError: There is no such run.
        """
        from mptui.runs.store.directory import find_run

        return find_run(self.runs_dir, self.run)


class Launch(Options):
    """The processes of a run."""

    nproc_per_node: str | None = option(
        None, "N|gpu", "Processes on this node, one for each device; gpu: all GPUs.", **PROCESSES
    )
    nnodes: int | None = option(None, "N", "Nodes, each with its own launcher.", min=1, **PROCESSES)
    rdzv_endpoint: str | None = option(
        None, "HOST:PORT", "Where the launchers of several nodes meet.", **PROCESSES
    )
    max_restarts: int = option(
        MOST_RESTARTS, "N", "Restarts from the last save after a process is lost.", min=0, **PROCESSES
    )


class Background(Options):
    """Where a run is trained."""

    detach: bool = flag("Train in the background and return to the shell.", **RUN)
    isolate: bool = flag("Train in a separate process, which a closed terminal doesn't end.", **RUN)


class Output(Options):
    """What is printed on stdout."""

    as_json: bool = flag("Print one JSON document on stdout.", "--json")


class QuietOutput(Output):
    """What is printed on stdout and stderr."""

    quiet: bool = flag("Print only warnings and the result.", "--quiet", "-q")


class MarkdownOutput(Output):
    """The form of a table."""

    markdown: bool = flag("Print tables as Markdown.")


# Settings that options give
# --------------------------

_TEXTS = {
    "model": "model.name",
    "weights": "model.weights",
    "task": "model.task",
    "precision": "precision.mode",
    "device": "hardware.device",
    "time": "training.time",
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
