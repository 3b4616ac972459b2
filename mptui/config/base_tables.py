"""The base of the schema's tables, the types of their values, and the tables that only a few rooms read."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from mptui.config.one_of import OneOf
from mptui.registry.denoising import SamplingMethod
from mptui.registry.samples import SampleKind
from mptui.registry.scope import Scope, beside, of_samples, of_tasks
from mptui.registry.tasks import DIFFUSION
from mptui.registry.trackers import TRACKERS

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
"""The smallest and the largest value."""
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
Freeze = Literal["backbone"] | list[str] | None
"""Layers that are not trained."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
PrecisionMode = Literal["auto", "bf16", "fp16", "fp32"]
NumericsMode = Literal["off", "summary", "full"]
_OF_GRIDS = beside("sampling.count", "above 0", bool)
_OF_ROLLBACK = beside("guards.on_nan", "rollback", lambda act: act == "rollback", said=True)
_OF_RECOVERY = beside("guards.on_nan", "rollback or stop", lambda act: act != "ignore", said=True)
OF_CLASSES = beside("model.class_conditional", "true", bool)


class Table(BaseModel):
    """A table of a profile: unknown keys are errors, values are never coerced from another type."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    scopes: ClassVar[tuple[Scope, ...]] = ()
    """Where its keys act: in the runs that are in all of these; a key may have others of its own."""


class MemoryConfig(Table):
    """How a step fits into device memory."""

    budget_gib: Annotated[float, Field(gt=0, le=4096)] | None = None
    """Memory in GiB that the run keeps to: activation checkpointing and `micro_batch` are chosen before the
    first step so that a tenth of it stays free, and CUDA allocates no more; unset: all of the device."""
    micro_batch: Count | Literal["auto"] | None = None
    """Samples per pass where `batch_size` doesn't fit into memory; auto: the most that fit, determined before
    the first step, with `budget_gib` by counting instead of trials."""
    activation_checkpointing: bool = False
    """Keep only the inputs of the network's blocks for the backward pass, which computes the rest again: the
    same result in less memory, and about a third slower."""
    shard: bool = False
    """Several processes: each holds and updates a part of every weight (FSDP2), so that weights, gradients,
    optimizer state and their average share the memory of all; slower, with the same result."""


class SpeedConfig(Table):
    """Optimizations that change results by no more than rounding."""

    compile: CompileMode = "off"
    """Mode of torch.compile, used only if the run is long enough to repay compiling (`--compile`: always)."""
    channels_last: bool | Literal["auto"] = "auto"
    """Store images and convolution weights as NHWC; auto: the faster by measurement."""
    fused: bool | Literal["auto"] = "auto"
    """Update all weights in one fused kernel; auto: the faster by measurement."""


class SamplingConfig(Table):
    """diffusion: images that the network makes after validations, in `samples/` of the run directory."""

    scopes = (of_tasks(DIFFUSION),)
    count: Annotated[int, Field(ge=0, le=1024)] = 16
    """Number of images in a grid; 0: none are made."""
    steps: Annotated[int, Field(ge=1, le=1000), _OF_GRIDS] = 20
    """Forward passes of the network for each image."""
    sampler: Annotated[SamplingMethod, _OF_GRIDS] = "ancestral"
    """ancestral: noise at each step, as DDPM; ddim: none after the first."""
    guidance: Annotated[float, Field(ge=0), _OF_GRIDS, OF_CLASSES] = 2.0
    """With classes: factor of the difference that the class makes (classifier-free guidance); 1: none."""
    every_epochs: Annotated[Count | None, _OF_GRIDS] = None
    """Epochs between two grids; unset: as often as takes a twentieth of the time, at least each tenth, and at
    the end."""
    keep: Annotated[Count, _OF_GRIDS] = 20
    """Number of newest grids kept."""


class CheckpointConfig(Table):
    """When checkpoints are saved, besides the end of each epoch, a new best, and a stop."""

    every_steps: Count | None = None
    """Optimizer steps between checkpoints; unset: none by steps."""
    every_minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """Minutes between checkpoints; unset: none by time."""
    keep: Count | Literal["all"] = 2
    """Number of newest checkpoints kept on disk, besides the best; all: none is removed."""


class GuardsConfig(Table):
    """Detection of and recovery from faults."""

    on_nan: Literal["rollback", "stop", "ignore"] = "rollback"
    """Divergence: roll back to the last good snapshot with safer settings, stop, or only count."""
    on_oom: Literal["split", "stop"] = "split"
    """Out of memory: repeat the batch in smaller micro-batches, or stop."""
    snapshot_every: Annotated[Count, _OF_ROLLBACK] = 500
    """Steps between two snapshots in memory, the states that a rollback can return to."""
    max_recoveries: Annotated[Count, _OF_ROLLBACK] = 8
    """Recoveries from divergence before the run ends as diverged."""
    max_skipped_streak: Annotated[Count, _OF_RECOVERY] = 50
    """Consecutive steps with non-finite gradients after which a run counts as diverged."""
    detect_anomaly: bool = False
    """Autograd's anomaly detection: names the operation that produced a NaN. Slow; for debugging."""
    check_batches: bool = False
    """Check every batch and loss for invalid values. Synchronizes the device each step; for debugging."""
    numerics: NumericsMode = "summary"
    """Numerics monitor: measures overflow and underflow in 16 bits. full: all values of a sampled step;
    summary: some of them."""
    hang_minutes: Annotated[float, Field(ge=0)] = 5.0
    """Minutes without progress after which all stacks are written to stacks.txt; 0: never."""


class LoggingConfig(Table):
    """What is recorded, and how often."""

    step_interval_s: Annotated[float, Field(ge=0)] = 0.5
    """Seconds between step events; 0: an event for each step."""
    trackers: list[Annotated[str, OneOf(TRACKERS)]] = []
    """Experiment trackers that log the run's metrics; the settings below ask for theirs, too."""
    pictures: Annotated[int, Field(ge=0, le=1000), of_samples(SampleKind.CLASS, SampleKind.MASK)] = 5
    """classification, segmentation: number of newest validations whose pictures of predictions are kept in
    `predictions/` of the run directory, besides the best; 0: none are made."""
    tensorboard: bool = False
    """Write TensorBoard files into the run directory."""
    wandb_project: str | None = None
    """Weights & Biases project to send the metrics to (needs the wandb package)."""
    wandb_name: str | None = None
    """Name of the run in Weights & Biases; unset: this run's name."""
    mlflow_experiment: str | None = None
    """MLflow experiment to send the metrics to (needs the mlflow package); the server is that of
    MLFLOW_TRACKING_URI."""
    trackio_project: str | None = None
    """Trackio project to send the metrics to (needs the trackio package)."""


class HardwareConfig(Table):
    """The device to train on."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N, xpu, or mps."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of an hour of the machine, in any currency, for the cost of the run; unset: no cost."""


class CodeConfig(Table):
    """Your own code: a network, task or data set named as `package.module:name`."""

    folder: str | None = None
    """Folder that your own code is imported from, as by `python -m`; unset: the current folder."""


class GradScalerConfig(Table):
    """Dynamic loss scaling of fp16 (parameters and defaults of torch.amp.GradScaler, and a lower limit)."""

    # bf16 falls back to fp16 on a device that lacks it
    scopes = (beside("precision.mode", "fp16", lambda mode: mode != "fp32", said=True),)
    init_scale: Annotated[float, Field(gt=0)] = 65536.0
    """Initial loss scale."""
    growth_factor: Annotated[float, Field(gt=1)] = 2.0
    """Factor of the loss scale after `growth_interval` consecutive steps with finite gradients."""
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor of the loss scale after a step with non-finite gradients."""
    growth_interval: Count = 2000
    """Consecutive steps with finite gradients before the loss scale grows."""
    min_scale: Annotated[float, Field(gt=0)] = 1.0
    """Lower limit of the loss scale; at a scale of 0, the next step would turn all weights to NaN."""


class PrecisionConfig(Table):
    """The number format that the network computes in."""

    mode: PrecisionMode = "auto"
    """auto: the fastest by measurement. A format that the device lacks falls back, in the order bf16, fp16,
    fp32, with a warning."""
    matmul: Literal["highest", "high", "medium"] = "high"
    """fp32 matrix products and convolutions, in torch's words. highest: full fp32; high: TensorFloat-32 where
    the device supports it; medium: bfloat16 for matrix products where that is fast."""
    fp32_layers: list[str] = Field(default=[])
    """Layers that compute in fp32 in every mode: names of the network's modules; `*` matches any part."""
    grad_scaler: GradScalerConfig = GradScalerConfig()

    @property
    def tf32(self) -> bool:
        """Whether TensorFloat-32 is allowed in fp32 products."""
        return self.matmul != "highest"
