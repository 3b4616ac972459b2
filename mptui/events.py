"""Every event that a run can emit. Nothing else crosses from the engine to a screen, a file or a tracker.

An event is a frozen dataclass. Its `kind` is the name in `events.jsonl`; `time` is seconds since the epoch
and `step` the number of optimizer steps tried so far. The way to JSON and back is `codec.py`'s.
"""

import time
from dataclasses import dataclass, field
from typing import ClassVar

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: when it happened, and after how many optimizer steps tried."""

    kind: ClassVar[str] = ""

    time: float = field(default_factory=time.time)
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run has a directory and knows what it will do."""

    kind: ClassVar[str] = "run_started"

    run: str
    directory: str
    version: int = SCHEMA_VERSION
    profile: str
    task: str
    model: str
    parameters: int
    dataset: str
    train_samples: int
    val_samples: int
    classes: list[str]
    device: str
    device_name: str
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
    resumed_from_step: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """What the run is busy with from now on.

    `phase` is one of `PHASES`. `total` is the number of units (files, batches) where it is known,
    `expected_s` the seconds that it took the last time.
    """

    kind: ClassVar[str] = "phase"

    phase: str
    detail: str = ""
    total: int | None = None
    expected_s: float | None = None


PHASES = (
    "starting",
    "scanning",
    "preparing",
    "warming_up",
    "compiling",
    "training",
    "validating",
    "saving",
    "paused",
    "finished",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """How far a phase without optimizer steps has come (scan, cache, validation): `done` of `total` units."""

    kind: ClassVar[str] = "progress"

    phase: str
    done: int
    total: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStarted(Event):
    """An epoch begins, or goes on at `first_step` after a resume. Epochs count from 1."""

    kind: ClassVar[str] = "epoch_started"

    epoch: int
    epochs: int
    steps: int
    first_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    """Some optimizer steps were taken since the last such event: a few events a second, whatever the rate.

    `loss` is the mean over the `steps` aggregated here, of the finite ones; `loss_min` and `loss_max` keep
    their spikes; `nonfinite` counts the others. With `logging.step_interval_s = 0` each step has its event.
    `split` is where the time of a step goes lately, in seconds that add up to all of it: data, copy, forward,
    backward, optimizer, logging, saving, other; `bound_by` what holds it back: data, copy, launch, compute,
    saving, or "".
    `ceilings` are the samples a second of the steps with their data at hand, and of the loader without steps.
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
    """The validation set was measured whole. `metrics` are fractions of 1 (acc1, acc5, iou, dice)."""

    kind: ClassVar[str] = "validated"

    epoch: int
    loss: float
    metrics: dict[str, float]
    per_class: dict[str, dict[str, float | None]] = field(default_factory=dict)
    seconds: float
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(Event):
    """An epoch ended. Losses are means over its samples, metrics fractions of 1."""

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
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample(Event):
    """What the device does now: None where the device does not say.

    `utilisation` is the whole device's and `utilisation_own` this process's part of it, fractions of 1; the
    rest bytes, watts, degrees Celsius, MHz. `throttle` says in words what holds the clocks down.
    """

    kind: ClassVar[str] = "device"

    name: str
    utilisation: float | None = None
    utilisation_own: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_own: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChanged(Event):
    """The precision in use is another from now on: a fall-back, a preset, a repair."""

    kind: ClassVar[str] = "precision_changed"

    precision: str
    previous: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped(Event):
    """Steps were not applied since their gradients were not finite; `total` counts all of the run."""

    kind: ClassVar[str] = "step_skipped"

    count: int
    total: int
    streak: int
    loss_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale(Event):
    """How fp16's loss scaling is doing, told when the scale has moved or a step was skipped.

    `growths` and `backoffs` count the scale's moves, `skipped` the steps refused while the loss was finite;
    `skip_rate` is their share of all steps tried with a scaled loss.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Where a step's numbers first stopped being finite, found by a look at its batch again.

    `where` is input, weights, forward, loss, backward, or empty where it did not happen again. `files` are
    those of the batch, or of its bad samples; `loss_scales` the last moves of the scale (step -> scale);
    `moves` what the run has done about it so far, `advice` what a person can try.
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


NUMERICS_BUDGET = {"summary": 0.005, "full": 0.05}
"""The share of a run's time that looks at its numbers take at most, by guards.numerics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsLayer:
    """What 16 bits do to a part of a layer: forward (its output), gradient (of it), weights (their gradient).

    All shares but `zeros` are of the values that are not zero, in fp16 under the loss scale in use, or the
    best one where none is. `lost` is `zeroed`, `subnormal` (fewer bits) and `overflow` together,
    `lost_unscaled` the same without any scale; `bf16_lost` the share that bf16's 8 bits move by more than
    2^-9 of its size. Sizes are those without scale; `exponents` counts values per mille, from the exponent
    `first_exponent` on. `fault` is overflow, underflow or empty.
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
    bf16_lost: float
    first_exponent: int
    exponents: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics(Event):
    """A look at one step's numbers: the layers that 16 bits hurt most, worst first; the rest as a sum.

    `lost` is the share of the gradients that the loss scale in use loses in fp16, the mean over layers, and
    `lost_at_best` with `best_scale`. A look takes `cost_s` seconds on top of its step, and there is one in
    `every_s` seconds. `eager`: the step ran without its compiled code for it.
    """

    kind: ClassVar[str] = "numerics"

    mode: str
    precision: str
    eager: bool
    loss_scale: float | None
    best_scale: float | None
    lost: float | None
    lost_at_best: float | None
    cost_s: float
    every_s: float
    layers: list[NumericsLayer]
    others: int
    others_at_fault: int
    others_lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Event):
    """Something that would help this run, with the setting that does it (`table.key=value`), if one does."""

    kind: ClassVar[str] = "advice"

    code: str
    message: str
    setting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Event):
    """Something is wrong with the run as it stands, until the same `code` comes with `over`.

    `code` is diverging: the loss is finite, far above its best and above chance.
    """

    kind: ClassVar[str] = "alert"

    code: str
    message: str
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The run met something that would have ended it, and went on.

    `problem` is divergence, bad batch, out of memory or host memory; `action` what was done about it.
    """

    kind: ClassVar[str] = "recovered"

    problem: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetSwitched(Event):
    """Another profile is in force from this step on; `changes` maps `table.key` to [old, new] as text.

    `lr` and `batch` are the effective learning rate (after scaling, warm-up and schedule, at this step) and
    the samples of an optimizer step, before and after; the new rate is reached in `ramp_steps` steps.
    `undone`: the switch before was taken back, and the run stands where it was before it.
    """

    kind: ClassVar[str] = "preset_switched"

    profile: str
    previous: str
    changes: dict[str, list[str]] = field(default_factory=dict)
    undone: bool = False
    lr: list[float] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)
    ramp_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is whole on the disk.

    `reason` is epoch, best, time, steps, compile, asked, switch, undo, stop, or error.
    """

    kind: ClassVar[str] = "checkpoint_saved"

    path: str
    reason: str
    seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """No step is taken until `Resumed`."""

    kind: ClassVar[str] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """Steps are taken again after `Paused`."""

    kind: ClassVar[str] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswered(Event):
    """A command from a key, a signal or the socket: `state` is asked, taken, done or refused."""

    kind: ClassVar[str] = "command"

    command: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something is not as asked for or not as it should be, and the run goes on."""

    kind: ClassVar[str] = "warning"

    code: str
    message: str


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
