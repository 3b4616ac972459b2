"""Start, phases, pauses and end of a run."""

from dataclasses import dataclass, field
from typing import ClassVar

from mptui.events.event import SCHEMA_VERSION, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run begins, or begins again after a resume: its directory, data, model and settings.

    `primary` is the metric that decides which epoch is best; `ranks` processes train, on `nodes` machines.
    `planned_lr` has [step, learning rate] from this step to the last.
    """

    kind: ClassVar[str] = "run_started"

    run: str
    directory: str
    version: int = SCHEMA_VERSION
    profile: str
    task: str
    primary: str = ""
    model: str
    parameters: int
    dataset: str
    train_samples: int
    val_samples: int
    classes: list[str]
    device: str
    device_name: str
    ranks: int = 1
    nodes: int = 1
    precision_requested: str
    precision: str
    precision_reason: str
    tf32: bool
    channels_last: bool
    compile_mode: str
    image_size: int
    batch_size: int
    accumulate: int
    epochs: int
    steps_per_epoch: int
    val_batches: int
    total_steps: int
    planned_lr: list[list[float]] = field(default_factory=list)
    resumed_from_step: int | None = None
    price_per_hour: float | None = None
    notes: list[str] = field(default_factory=list)


PHASES = (
    "starting",
    "restarting",
    "scanning",
    "preparing",
    "warming_up",
    "compiling",
    "training",
    "validating",
    "sampling",
    "saving",
    "paused",
    "finished",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """The run enters another phase.

    `phase` is one of `PHASES`. `total` is the number of units (files, batches) where it is known,
    `expected_s` the seconds that it is expected to take, `known_from` what this is known from, in words.
    """

    kind: ClassVar[str] = "phase"

    phase: str
    detail: str = ""
    total: int | None = None
    expected_s: float | None = None
    known_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """Progress of a phase without optimizer steps (scan, cache, validation): `done` of `total` units."""

    kind: ClassVar[str] = "progress"

    phase: str
    done: int
    total: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """Training pauses until `Resumed`."""

    kind: ClassVar[str] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """Training continues after `Paused`."""

    kind: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run ended. `status` and `exit_code` as in summary.json and the table of exit codes."""

    kind: ClassVar[str] = "run_finished"

    status: str
    exit_code: int
    message: str = ""
    hint: str = ""
    directory: str = ""
    seconds: float = 0.0
