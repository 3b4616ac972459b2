"""Every event that a run can emit, all that a screen, a file or a tracker knows of the run; and its JSON."""

import functools
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from mptui.io.records import Read, as_time, reader_of

# The base of all events
# ----------------------

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of every event.

    `kind` is its name in `events.jsonl`, `time` seconds since the epoch, `step` the number of optimizer steps
    tried so far. `clock` is the time in seconds of the monotonic clock when the run's process reported the
    event: durations are taken from it, as the wall's clock may be set, and an event may tell of an earlier
    time. It is None in older journals, and for events of other processes.
    """

    kind: ClassVar[str] = ""

    time: float = field(default_factory=time.time)
    step: int = 0
    clock: float | None = None

    @property
    def instant(self) -> float:
        """Time in seconds from which durations are taken: by the monotonic clock if it is known."""
        return self.time if self.clock is None else self.clock


# Start, phases, pauses and end of a run
# --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run begins, or begins again after a resume: its directory, data, model and settings.

    `changed` are the settings that people have set since it took its profile (`table.key`).
    `primary` is the metric that decides which epoch is best; `ranks` processes train, on `nodes` machines.
    `total_steps` are the steps taken and those ahead, which are of the batch in force. `planned_lr` has
    [step, learning rate] from this step to the last.
    """

    kind: ClassVar[str] = "run_started"

    run: str
    directory: str
    version: int = SCHEMA_VERSION
    profile: str
    changed: list[str] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked(Event):
    """The run begins at a checkpoint of another one, its `parent`, with what it has from it.

    It is the first event of a fork, and known before the fork trains.
    """

    kind: ClassVar[str] = "forked"

    parent: str
    profile: str = ""
    changed: list[str] = field(default_factory=list)
    model: str = ""
    dataset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """The run enters another phase.

    `phase` is starting, restarting, scanning, preparing, warming_up, compiling, training, validating,
    sampling, saving, paused or finished. `total` is the number of units (files, batches) where it is known,
    `expected_s` the seconds that it is expected to take, `known_from` what this is known from, in words.
    `found` is what came of the work before it: the size of the data, a choice with its measurement.
    """

    kind: ClassVar[str] = "phase"

    phase: str
    detail: str = ""
    found: str = ""
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
    """Training pauses until `Resumed`. `by`: who or what has paused it, as `CommandAnswered.by`, or disk."""

    kind: ClassVar[str] = "paused"

    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """Training continues after `Paused`."""

    kind: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(Event):
    """The process did not run for so many seconds up to now: it, or the machine, was suspended."""

    kind: ClassVar[str] = "suspended"

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run ended. `status` and `exit_code` as in summary.json and the table of exit codes.

    `seconds` are those of this session, `total_s` those of all sessions of the run; None: in older journals.
    `concerns`: why its result is doubtful, though it ended as it should.
    """

    kind: ClassVar[str] = "run_finished"

    status: str
    exit_code: int
    message: str = ""
    hint: str = ""
    directory: str = ""
    seconds: float = 0.0
    total_s: float | None = None
    concerns: list[str] = field(default_factory=list)


# Epochs, steps, validations, checkpoints, and the device under them
# ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStarted(Event):
    """An epoch begins, or continues at `first_step` after a resume or a switch. Epochs count from 1.

    `steps` are those of the epoch, `total_steps` those taken in the run and those ahead; None: in older
    journals.
    """

    kind: ClassVar[str] = "epoch_started"

    epoch: int
    epochs: int
    steps: int
    first_step: int = 0
    total_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPlanned(Event):
    """A run with a `training.time` has as many epochs and steps from now on, by the rate that is measured.

    `total_steps` are those taken and those ahead. `planned_lr` is as that of `RunStarted`.
    """

    kind: ClassVar[str] = "length_planned"

    epochs: int
    total_steps: int
    planned_lr: list[list[float]] = field(default_factory=list)


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
    """Images were written: of a validation those that the network has made, or what it predicts.

    `path` is their file in the run directory, "" if it could not be written. `what` is samples, which the
    network has made, predictions of validation images, in whose file `.json` replaces `.png`, or data:
    the first training images as the network gets them, side by side, with `labels`: the class of each, both
    of a mixed one, or how noisy it is.
    """

    kind: ClassVar[str] = "images_generated"

    epoch: int
    path: str
    images: int
    seconds: float
    what: str = "samples"
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(Event):
    """An epoch ended. Losses are means over its samples, metrics fractions of 1.

    `seconds` are those of the whole epoch with its validation, as far as this process has trained it;
    `samples_per_second` is the rate of its steps, which took `training_s`. `samples_trained` are those of the
    steps that were applied. None: unknown, in older journals.
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
    training_s: float | None = None
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


# Precision, loss scale, skipped steps and numerics
# -------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChanged(Event):
    """Another precision is in use from this step on: a fallback, or another profile."""

    kind: ClassVar[str] = "precision_changed"

    precision: str
    previous: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped(Event):
    """Steps were skipped because their gradients were not finite.

    `count` is their number since the previous event, `total` that of the whole run, `streak` how many of the
    last steps were skipped in a row.
    """

    kind: ClassVar[str] = "step_skipped"

    count: int
    total: int
    streak: int
    loss_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale(Event):
    """Statistics of fp16's loss scale, emitted when the scale changes or a step is skipped.

    `growths` and `backoffs` count its changes, `skipped` the steps skipped although the loss was finite.
    `skip_rate` is their share of all steps with a scaled loss.
    """

    kind: ClassVar[str] = "loss_scale"

    scale: float
    lowest: float
    highest: float
    growths: int
    backoffs: int
    skipped: int
    streak: int
    longest_streak: int
    skip_rate: float


NUMERICS_BUDGET = {"summary": 0.005, "full": 0.05}
"""Largest share of a run's time that numerics probes may take, by the value of guards.numerics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsLayer:
    """What 16 bits do to one part of a layer: forward (output), gradient (of the output), weights (gradient).

    All shares except `zeros` are of the nonzero values, in fp16 under the loss scale in use, or under the
    best one if none is in use. `lost` is the sum of `zeroed`, `subnormal` (fewer bits) and `overflow`;
    `lost_unscaled` is the same without a loss scale. `smallest` and `largest` are without a scale.
    `exponents` is a histogram per mille that begins at the exponent `first_exponent`. `fault` is overflow,
    underflow or empty.
    """

    name: str
    part: str
    fault: str
    values: int
    zeros: float
    smallest: float
    largest: float
    zeroed: float
    subnormal: float
    overflow: float
    lost: float
    lost_unscaled: float
    first_exponent: int
    exponents: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics(Event):
    """Result of one numerics probe: the layers that 16 bits hurt most, worst first, and a sum of the others.

    `lost` is the share of the gradients that fp16 loses under the loss scale in use, as a mean over layers;
    `lost_at_best` is the same under `best_scale`, None for gradients that fp16 has rounded already: what it
    lost of them is unknown, and `best_scale` the largest that they allow. A probe adds `cost_s` seconds to
    its step (None: too few were measured) and runs once in `every_s` seconds. `eager`: the probed step ran
    without its compiled code.
    """

    kind: ClassVar[str] = "numerics"

    mode: str
    precision: str
    eager: bool
    loss_scale: float | None
    best_scale: float | None
    lost: float | None
    lost_at_best: float | None
    cost_s: float | None
    every_s: float
    layers: list[NumericsLayer]
    others: int
    others_at_fault: int
    others_lost: float


# The processes of a run in several processes
# -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank: its device, and the medians of its recent times; None for what is not known.

    `utilisation` is a fraction of 1, memory in bytes, `temperature_c` in degrees Celsius; on a CPU,
    utilisation and memory are those of its process. `throttle` lists why clocks are reduced. A step of this
    rank is `data_s` (waiting for its data), `forward_s`, `backward_s` (until its own gradients are complete)
    and `wait_s` (for those of the others), in seconds. `slowest` counts the measured steps in which it was
    the slowest, `silent_s` the seconds since its last sign of life.
    """

    rank: int
    host: str
    utilisation: float | None
    memory_used: int | None
    memory_total: int | None
    temperature_c: float | None
    throttle: list[str]
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    wait_s: float | None
    slowest: int
    silent_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSampled(Event):
    """All ranks of a run in several processes: an event every two seconds, less often with many ranks.

    `rows` are in the order of the ranks, `steps` is the number of measured steps that they are about.
    `verdict` says which ranks are slower than the others, how often, and why; empty if none is. With weights
    that are `sharded` and with synchronized BatchNorm, for which it is set, too, ranks wait for each other in
    all passes: only their waits for data are compared.
    """

    kind: ClassVar[str] = "ranks"

    rows: list[RankRow]
    steps: int
    verdict: str = ""
    slow: list[int] = field(default_factory=list)
    sharded: bool = False


# Warnings, alerts, diagnoses and recoveries
# ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A setting or a resource is not as requested; the run continues."""

    kind: ClassVar[str] = "warning"

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Event):
    """A condition of the run that lasts until an event with the same `code` has `over` set.

    `code` is diverging: the loss is finite, but far above its best and above chance; or disk: few further
    checkpoints fit on it.
    """

    kind: ClassVar[str] = "alert"

    code: str
    message: str
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Origin of a step's non-finite numbers, found by computing its batch again.

    `where` is input, weights, forward, loss, backward, or empty if the numbers were finite this time. `files`
    are those of the batch, or of its bad samples. `loss_scales` are the last changes of the scale (step ->
    scale), `moves` the recoveries tried so far, `advice` what the user can try.
    """

    kind: ClassVar[str] = "diagnosed"

    problem: str
    epoch: int
    precision: str
    where: str
    layer: str
    operation: str
    detail: str
    files: list[str] = field(default_factory=list)
    loss_scales: dict[str, float] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The run recovered from a problem that would have ended it.

    `problem` is divergence, bad batch, out of memory, host memory or disk; `action` is the remedy.
    """

    kind: ClassVar[str] = "recovered"

    problem: str
    action: str


# Advice, commands, and switches of the profile
# ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Event):
    """A suggestion for this run, with the setting that applies it (`table.key=value`) if there is one."""

    kind: ClassVar[str] = "advice"

    code: str
    message: str
    setting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswered(Event):
    """State of a command from a key, a signal or the socket: asked, taken, done or refused.

    `id` is the one that its client gave it; "": none did. `by` is who asks: key, script (a client of the
    socket that is no screen), signal, restart (as it was before), or mptui; "": unknown, in older journals.
    """

    kind: ClassVar[str] = "command"

    command: str
    state: str
    detail: str = ""
    id: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetSwitched(Event):
    """The run uses another profile from this step on; `changes` maps `table.key` to [old, new] as text.

    `changed` are the settings that people have set since it took this profile; None: in older journals.
    `lr` is the effective learning rate (after scaling, warm-up and schedule, at this step) before and after;
    `batch` is the effective batch before and after. The rate changes over `ramp_steps` steps;
    `planned_lr` has [step, learning rate] from this step to the last. `undone`: the
    previous switch was undone, and the run is back at the step before it. `by`: as `CommandAnswered.by`.
    """

    kind: ClassVar[str] = "preset_switched"

    profile: str
    previous: str
    changes: dict[str, list[str]] = field(default_factory=dict)
    changed: list[str] | None = None
    undone: bool = False
    lr: list[float] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)
    ramp_steps: int = 0
    planned_lr: list[list[float]] = field(default_factory=list)
    by: str = ""


# Converts events to JSON and back
# --------------------------------
# JSON has no NaN or infinity; these are stored as the strings "nan", "inf" and "-inf".

E = TypeVar("E", bound=Event)


def to_record(event: Event) -> dict[str, Any]:
    """Convert an event to a JSON-ready dict that starts with `event`, `time` and `step`."""
    record: dict[str, Any] = {"event": event.kind, "time": round(event.time, 3), "step": event.step}
    if event.clock is not None:
        record["clock"] = round(event.clock, 3)
    for name in _own_fields(type(event)):  # type: ignore[arg-type] # a class is hashable
        record[name] = finite_json(getattr(event, name))
    return record


@functools.cache
def _own_fields(kind: type[Event]) -> tuple[str, ...]:
    of_all = {f.name for f in fields(Event)}
    return tuple(f.name for f in fields(kind) if f.name not in of_all)


def from_record(record: Mapping[str, Any], kind: type[E]) -> E | None:
    """Convert a record of a journal to an event of this class.

    None for a record of another kind, and for one that lacks a field or has a field of another type: a
    damaged line must not bring down its reader.
    """
    if record.get("event") != kind.kind:
        return None
    try:
        readers = _readers(kind)  # type: ignore[arg-type] # a class is hashable, whatever its instances are
        return kind(**{name: read(record[name]) for name, read in readers if name in record})
    except (TypeError, ValueError, KeyError, OverflowError):
        return None


@functools.cache
def _readers(kind: type[Event]) -> list[tuple[str, Read]]:
    return [(f.name, as_time if f.name in {"time", "clock"} else reader_of(f.type)) for f in fields(kind)]


def finite_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replace each non-finite float in a value by its name as a string, and each dataclass by its fields."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {k: finite_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(v) for v in value]
    if is_dataclass(value):
        return {f.name: finite_json(getattr(value, f.name)) for f in fields(value)}
    return value


def json_line(document: Mapping[str, object]) -> bytes:
    """Return a document as a line of JSON; floats that are not finite are refused."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
