"""Epochs, steps, validations, checkpoints, and the device under them."""

from dataclasses import dataclass, field
from typing import ClassVar

from mptui.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStarted(Event):
    """An epoch begins, or continues at `first_step` after a resume. Epochs count from 1."""

    kind: ClassVar[str] = "epoch_started"

    epoch: int
    epochs: int
    steps: int
    first_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersThawed(Event):
    """Layers that were frozen are trained from now on: `trained` of `parameters` parameters."""

    kind: ClassVar[str] = "layers_thawed"

    trained: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    """The optimizer steps since the previous `Step` event: a few events a second, at any step rate.

    With `logging.step_interval_s = 0` each step has an event of its own.

    `steps` is the number of steps. `loss` is the mean of their finite losses, `loss_min` and `loss_max` the
    range, `nonfinite` the number of the other losses. `split` divides the recent time of a step, in seconds,
    into data, copy, forward, backward, wait (for the gradients of other ranks), optimizer, logging, saving
    and other. `bound_by` is the bottleneck: data, copy, launch, compute, optimizer, saving, wait, or "" while
    unknown.
    `ceilings` are samples per second: "steps" of the steps alone, with their data ready, "data" of the loader
    alone.
    """

    kind: ClassVar[str] = "step"

    epoch: int
    epoch_step: int
    steps: int
    samples_seen: int
    loss: float
    loss_min: float
    loss_max: float
    nonfinite: int = 0
    lr: float
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped_steps: int = 0
    samples_per_second: float | None = None
    step_time_s: float | None = None
    data_wait_fraction: float | None = None
    split: dict[str, float] = field(default_factory=dict)
    bound_by: str = ""
    ceilings: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Event):
    """A validation ended. `metrics` are fractions of 1 (acc1, acc5, iou, dice, …).

    `primary` names the metric that decides which epoch is best, or is `val_loss`: `loss`. If it is a metric,
    it is the first. With very many classes, `per_class` has those with the worst values, the worst first.
    `loss_terms` tells what the loss has in it beside its plain form, such as label smoothing.
    """

    kind: ClassVar[str] = "validated"

    epoch: int
    loss: float
    metrics: dict[str, float]
    primary: str = ""
    loss_terms: list[str] = field(default_factory=list)
    per_class: dict[str, dict[str, float | None]] = field(default_factory=dict)
    seconds: float
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesGenerated(Event):
    """Images of a validation were written: those that the network has made, or what it predicts.

    `path` is their file in the run directory, "" if it could not be written. `what` is samples, which the
    network has made, or predictions of validation images, in whose file `.json` replaces `.png`.
    """

    kind: ClassVar[str] = "images_generated"

    epoch: int
    path: str
    images: int
    seconds: float
    what: str = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(Event):
    """An epoch ended. Losses are means over its samples, metrics fractions of 1.

    `samples_trained` are those of the steps that were applied; None: unknown, in older journals.
    """

    kind: ClassVar[str] = "epoch_finished"

    epoch: int
    epochs: int
    train_loss: float
    train_metrics: dict[str, float]
    val_loss: float | None = None
    val_metrics: dict[str, float] = field(default_factory=dict)
    lr: float
    seconds: float
    samples_per_second: float | None = None
    samples_trained: int | None = None
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint was written completely.

    `reason` is epoch, best, time, steps, compile, asked, switch, undo, stop, or error.
    """

    kind: ClassVar[str] = "checkpoint_saved"

    path: str
    reason: str
    seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory of a GPU (bytes): its user, and its program without arguments."""

    pid: int
    user: str | None
    command: str | None
    memory: int | None


HARMFUL_THROTTLING = frozenset({"hardware slowdown", "heat", "heat, hardware limit", "external power brake"})
"""Reasons in `DeviceSample.throttle` that are faults of cooling or power; the others are limits as set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample(Event):
    """Load, memory, power and temperature of the device; None for what it does not report.

    `utilisation` is that of the whole device and `utilisation_own` the part of this process, as fractions
    of 1; `memory_utilisation` is the fraction of time in which its memory was read or written. The others
    are in bytes, watts, degrees Celsius and MHz. `throttle` lists why clocks are reduced, and `processes`
    those on a GPU, the largest first; None: as in the sample before, or unknown.
    """

    kind: ClassVar[str] = "device"

    name: str
    device: str = ""
    utilisation: float | None = None
    utilisation_own: float | None = None
    memory_utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_own: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: list[str] = field(default_factory=list)
    processes: list[DeviceProcess] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample(Event):
    """Memory of the training process in bytes; None for what its device does not report.

    `allocated` are tensors now, `peak` the most since the run began, `reserved` what torch's allocator holds,
    `gaps` its free parts of blocks that are in use, which only small tensors fit into. `process` is the host
    memory of the process.
    """

    kind: ClassVar[str] = "memory"

    allocated: int | None = None
    peak: int | None = None
    reserved: int | None = None
    gaps: int | None = None
    process: int | None = None
