"""The schema of a run: every table and key of a profile, with its meaning, unit and default."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mptui.registry.names import (
    Interpolation,
    NoiseSchedule,
    NumericsMode,
    Prediction,
    SampleKind,
    SamplingMethod,
)
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.own_code import is_own
from mptui.registry.scope import (
    OF_BUILT_IN,
    OF_FOLDERS,
    OF_OTHER_DATA,
    Scope,
    beside,
    of_network,
    of_optimizer,
    of_samples,
    of_task,
    of_tasks,
)
from mptui.registry.tasks import CLASSIFICATION, DIFFUSION, LOSSES, SEGMENTATION, TASKS
from mptui.registry.trackers import TRACKERS
from mptui.registry.transforms import TRANSFORMS
from mptui.text import read_duration

# The type of a setting that names an entry of a registry
# -------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """Annotates text that must be a key of `registry`, as of the time of the check.

    With `or_own`, it may name the person's own code instead: `package.module:name`.
    """

    registry: Collection[str]
    or_own: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Add the check to the schema of `str`."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self.registry and not (self.or_own and is_own(name)):
            own = ["package.module:name"] if self.or_own else []
            words = " or ".join(repr(word) for word in [*self.registry, *own])
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": words})
        return name


# When a setting of a run that has begun can change
# --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Live:
    """Annotates a key that a switch or `set` changes between two steps; others wait for a resume.

    Attributes:
        owner: The file below `mptui/` whose code reads the value anew.
        one_optimizer: Whether its value suits one optimizer, so that a profile with another leaves it.
        overridden_by: Paths in a checkpoint to what a run made of it: not restored if a resume changes it.
    """

    owner: str
    one_optimizer: bool = False
    overridden_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fixed:
    """Annotates a key that not even a resume can change, and `why`: the state of a run depends on it."""

    why: str


_OF_JOB = Live("engine/job.py")
_OF_LOADER = Live("runs/planning/build.py")
_OF_SCALE = Live("engine/precision.py")
_OF_SAVES = Live("engine/checkpoint/saver.py")
_OF_DIVERGENCE = Live("engine/guards/divergence.py")
_OF_OPTIMIZER = Live("engine/optim/optimizers.py", one_optimizer=True)
_OF_ITS_OPTIMIZER = Live("registry/optimizers.py", one_optimizer=True)
_OF_RATE = Live("engine/optim/schedule.py", one_optimizer=True)
_OF_PRECISION = Live(
    "runs/planning/change.py",
    overridden_by=("guards/nan/ladder/precision", "guards/nan/ladder/islands"),
)
_OF_WEIGHTS = Fixed("its weights fit no other network")
_OF_OWN_WEIGHTS = Fixed("it continues from its own weights")
_OF_SAMPLES = Fixed("the order of its samples and its validation set depend on it")
_OF_DIFFUSION = Fixed("its network has learnt by it")


# The base of the schema's tables, the types of their values, and the tables that only a few rooms read
# -----------------------------------------------------------------------------------------------------


def _duration(text: str) -> str:
    try:
        read_duration(text)
    except ValueError:
        raise PydanticCustomError("duration", "a duration") from None
    return text


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Duration = Annotated[str, AfterValidator(_duration), Field(examples=["30m", "2h"])]
Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
"""The smallest and the largest value."""
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
Freeze = Literal["backbone"] | list[str] | None
"""Layers that are not trained."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
PrecisionMode = Literal["auto", "bf16", "fp16", "fp32"]

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

    budget_gib: Annotated[Annotated[float, Field(gt=0, le=4096)] | None, Live("engine/commands.py")] = None
    """Memory in GiB that the run keeps to: activation checkpointing and `micro_batch` are chosen before the
    first step so that a tenth of it stays free, and CUDA allocates no more; unset: all of the device."""
    micro_batch: Annotated[
        Count | Literal["auto"] | None, Live("engine/guards/memory.py", overridden_by=("guards/memory",))
    ] = None
    """Samples per pass on each process, where its part of a batch doesn't fit into memory; auto: the most
    that fit, determined before the first step, with `budget_gib` by counting instead of trials."""
    activation_checkpointing: Annotated[bool, _OF_JOB] = False
    """Keep only the inputs of the network's blocks for the backward pass, which computes the rest again: the
    same result in less memory, and about a third slower."""
    shard: bool = False
    """Several processes: each holds and updates a part of every weight (FSDP2), so that weights, gradients,
    optimizer state and their average share the memory of all; slower, with the same result."""


class SpeedConfig(Table):
    """Optimizations that change results by no more than rounding."""

    compile: Annotated[CompileMode, replace(_OF_JOB, overridden_by=("compiled",))] = "off"
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

    every_steps: Annotated[Count | None, _OF_SAVES] = None
    """Optimizer steps between checkpoints; unset: none by steps."""
    every_minutes: Annotated[Annotated[float, Field(gt=0)] | None, _OF_SAVES] = 10.0
    """Minutes between checkpoints; unset: none by time."""
    keep: Annotated[Count | Literal["all"], _OF_SAVES] = 2
    """Number of newest checkpoints kept on disk, besides the best; all: none is removed."""


class GuardsConfig(Table):
    """Detection of and recovery from faults."""

    on_nan: Annotated[Literal["rollback", "stop", "ignore"], _OF_DIVERGENCE] = "rollback"
    """Divergence: roll back to the last good snapshot with safer settings, stop, or only count."""
    on_oom: Annotated[Literal["split", "stop"], Live("engine/guards/memory.py")] = "split"
    """Out of memory: repeat the batch in smaller micro-batches, or stop."""
    snapshot_every: Annotated[Count, _OF_ROLLBACK, _OF_DIVERGENCE] = 500
    """Steps between two snapshots in memory, the states that a rollback can return to."""
    max_recoveries: Annotated[Count, _OF_ROLLBACK, _OF_DIVERGENCE] = 8
    """Recoveries from divergence before the run ends as diverged."""
    max_skipped_streak: Annotated[Count, _OF_RECOVERY, _OF_DIVERGENCE] = 50
    """Consecutive steps with non-finite gradients after which a run counts as diverged."""
    detect_anomaly: Annotated[bool, Live("engine/progress.py")] = False
    """Autograd's anomaly detection: names the operation that produced a NaN. Slow; for debugging."""
    check_batches: Annotated[bool, Live("engine/guards/nan_localizer.py")] = False
    """Check every batch and loss for invalid values. Synchronizes the device each step; for debugging."""
    numerics: Annotated[NumericsMode, Live("engine/numerics.py")] = "summary"
    """Numerics monitor: measures overflow and underflow in 16 bits. full: all values of a sampled step;
    summary: some of them."""
    hang_minutes: Annotated[float, Field(ge=0), Live("runs/session/session.py")] = 5.0
    """Minutes without progress after which all stacks are written to stacks.txt; 0: never."""


class LoggingConfig(Table):
    """What is recorded, and how often."""

    step_interval_s: Annotated[float, Field(ge=0), Live("engine/state.py")] = 0.5
    """Seconds between step events; 0: an event for each step."""
    trackers: list[Annotated[str, OneOf(TRACKERS)]] = []
    """Experiment trackers that log the run's metrics; the settings below ask for theirs, too."""
    pictures: Annotated[
        int,
        Field(ge=0, le=1000),
        of_samples(SampleKind.CLASS, SampleKind.MASK),
        Live("engine/reporting/pictures.py"),
    ] = 5
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

    device: Annotated[str, Field(examples=["auto", "cpu", "cuda", "xpu", "mps"])] = "auto"
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
    init_scale: Annotated[float, Field(gt=0), replace(_OF_SCALE, overridden_by=("scaler",))] = 65536.0
    """Initial loss scale."""
    growth_factor: Annotated[float, Field(gt=1), _OF_SCALE] = 2.0
    """Factor of the loss scale after `growth_interval` consecutive steps with finite gradients."""
    backoff_factor: Annotated[float, Field(gt=0, lt=1), _OF_SCALE] = 0.5
    """Factor of the loss scale after a step with non-finite gradients."""
    growth_interval: Annotated[Count, _OF_SCALE] = 2000
    """Consecutive steps with finite gradients before the loss scale grows."""
    min_scale: Annotated[float, Field(gt=0), _OF_SCALE] = 1.0
    """Lower limit of the loss scale; at a scale of 0, the next step would turn all weights to NaN."""


class PrecisionConfig(Table):
    """The number format that the network computes in."""

    mode: Annotated[PrecisionMode, _OF_PRECISION] = "auto"
    """auto: the fastest by measurement. A format that the device lacks falls back, in the order bf16, fp16,
    fp32, with a warning."""
    matmul: Annotated[Literal["highest", "high", "medium"], Live("engine/progress.py")] = "high"
    """fp32 matrix products and convolutions, in torch's words. highest: full fp32; high: TensorFloat-32 where
    the device supports it; medium: bfloat16 for matrix products where that is fast."""
    fp32_layers: Annotated[list[str], _OF_JOB] = Field(default=[])
    """Layers that compute in fp32 in every mode: names of the network's modules; `*` matches any part."""
    grad_scaler: GradScalerConfig = GradScalerConfig()

    @property
    def tf32(self) -> bool:
        """Whether TensorFloat-32 is allowed in fp32 products."""
        return self.matmul != "highest"


# The schema of a run: every table and key of a profile, with its meaning, unit and default
# -----------------------------------------------------------------------------------------
# A profile names a subset of these keys; the others keep their defaults. Keys are the fixed names that
# profiles, `--set table.key=value` and `MPTUI_TABLE_KEY` share. The schema holds no runtime objects.

_OF_LENGTH = beside("training.time", "unset", lambda time: time is None)
_OF_STEPS = beside("training.schedule", "step", lambda decay: decay == "step")
_OF_CROPS = of_samples(SampleKind.CLASS, SampleKind.MASK)
_OF_VIEWS = beside(
    "data.augment", "default or with crop", lambda views: views == "default" or "crop" in views
)
_LARGEST = 1e18
"""The largest pixel after normalisation: its square is finite in float32."""


class ModelConfig(Table):
    """The network to train."""

    name: Annotated[str | None, _OF_WEIGHTS] = None
    """A torchvision classifier (`resnet50`, …), one of timm (`timm/convnext_tiny`, …), `unet`,
    `diffusion_unet`, `latent_diffusion`, `vae`, or your own as `package.module:function` (with --trust-code);
    unset: chosen for the data."""
    task: Annotated[
        Annotated[str, OneOf(TASKS, or_own=True)] | None, Fixed("its loss and its best epoch depend on it")
    ] = None
    """What the network learns: classification, segmentation, diffusion, reconstruction, or your own loss as
    `package.module:name` (with --trust-code); unset: that of the network and of the data."""
    weights: Annotated[str | None, Field(examples=["pretrained"]), _OF_OWN_WEIGHTS] = None
    """A local weights file (.safetensors, or .pth loaded without running its code), or `pretrained`: the
    published weights of the network, downloaded once; unset: random weights. Images are prepared as for these
    weights."""
    weights_key: Annotated[str | None, beside("model.weights", "set", bool), _OF_OWN_WEIGHTS] = None
    """Key of the weights in a checkpoint of another program (`state_dict_ema`), or the prefix of their names
    (`encoder_q`); unset: the weights as they were trained, not their average."""
    encoder: Annotated[
        str | None,
        Field(examples=["timm/resnet34", "timm/convnext_tiny"]),
        of_network("encoder"),
        _OF_WEIGHTS,
    ] = None
    """unet: a network of timm (`timm/resnet34`, …) as its encoder; with `weights = "pretrained"` it has its
    published weights; unset: `depth` levels of two convolutions."""
    width: Annotated[int, Field(ge=1, le=1024), of_network("width"), _OF_WEIGHTS] = 64
    """unet: channels of the first level, doubled at each level below; with an encoder: of the decoder at a
    quarter of the resolution. diffusion_unet: channels of the first level and added at each level below;
    unset: 128, on a CPU 32. vae: of the first level, below it twice and 4 times; unset: 64, on a CPU 16."""
    depth: Annotated[int, Field(ge=1, le=6), of_network("depth"), _OF_WEIGHTS] = 4
    """Halvings of the resolution; unset: unet 4, diffusion_unet 3, latent_diffusion 2, vae 3 (on a CPU 2)."""
    attention: Annotated[list[Annotated[int, Field(ge=1)]] | None, of_network("attention"), _OF_WEIGHTS] = (
        None
    )
    """diffusion_unet: heights in pixels of the levels with self-attention; unset: of the two deepest ones.
    latent_diffusion: heights in latents."""
    class_conditional: Annotated[bool, of_network("class_conditional"), _OF_WEIGHTS] = False
    """diffusion_unet: learn the classes of the data too, to make images of one class; needs class folders."""
    vae: Annotated[str | None, Field(examples=["vae-export"]), of_network("vae")] = None
    """latent_diffusion: folder of its VAE, as diffusers' AutoencoderKL or `mptui export --format diffusers`
    writes it: config.json and diffusion_pytorch_model.safetensors."""
    vae_precision: Annotated[Literal["fp32", "bf16", "fp16"], of_network("vae")] = "fp32"
    """latent_diffusion: number format in which the VAE encodes. 16 bits are checked on the first images."""
    vae_sha256: Annotated[
        str | None, of_network("vae"), Fixed("its network has learnt the latents of this VAE")
    ] = None
    """latent_diffusion: SHA-256 of both files of the VAE, noted when a run starts, so that it goes on with no
    other one; unset: that of `vae`."""
    up: Annotated[Literal["transposed", "bilinear"], of_network("up"), _OF_WEIGHTS] = "transposed"
    """unet: upsampling in the decoder."""
    norm: Annotated[Literal["batch", "group"], of_network("norm"), _OF_WEIGHTS] = "batch"
    """unet: normalisation after each convolution."""

    def reads(self, task: str) -> SampleKind:
        """Return what the data must hold for a task: with classes, a diffusion model needs their labels."""
        return SampleKind.CLASS if self.class_conditional else TASKS[task].sample


class TrainingConfig(Table):
    """Optimization: epochs, batch, learning rate, optimizer, regularisation."""

    time: Annotated[Duration | None, Live("engine/time_budget.py")] = None
    """Duration of the run, as 90m, 2h or 1h30m, over restarts and without pauses: as many steps are taken as
    fit, by the measured rate, and the schedule ends with them; unset: not limited."""
    epochs: Annotated[Count, _OF_LENGTH] = 10
    """Passes over the training set."""
    max_steps: Count | None = None
    """Maximum number of optimizer steps; ends the run and its schedule before `epochs` if it is smaller."""
    batch_size: Annotated[Count, _OF_LOADER] = 64
    """Samples per batch, of all processes together. Neither it nor the rate set, with few images in class
    folders: a power of two from 8 on with which an epoch has about 16 steps, and the rate in proportion."""
    accumulate: Annotated[Count, _OF_JOB] = 1
    """Batches per optimizer step; the gradient is averaged over all their valid items."""
    lr: Annotated[float, Field(gt=0), replace(_OF_RATE, overridden_by=("guards/nan/ladder/lr_factor",))] = 0.1
    """Peak learning rate for an effective batch of `lr_batch_size`."""
    lr_scaling: Annotated[Literal["linear", "sqrt", "off"], _OF_RATE] = "linear"
    """Rescaling of `lr` from `lr_batch_size` to the effective batch (batch_size x accumulate)."""
    lr_batch_size: Annotated[Count | None, _OF_RATE] = None
    """Effective batch that `lr` was chosen for; unset: the batch in use, so `lr` is not rescaled."""
    freeze: Annotated[Count | Freeze, Live("engine/optim/optimizers.py")] = None
    """Layers that are not trained. backbone: all but the head; a number: all but the head, in so many first
    epochs; a list: names of the network's modules, `*` matches any part; unset: none."""
    layer_decay: Annotated[float, Field(gt=0, le=1), _OF_OPTIMIZER] = 1.0
    """Factor of the learning rate from each layer to the one before it, so that layers near the input change
    less in fine-tuning; 1: one rate for all layers."""
    head_lr_scale: Annotated[float, Field(gt=0), _OF_OPTIMIZER] = 1.0
    """Factor of the learning rate of the head, the layer that outputs the logits."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs over which the learning rate rises linearly from near 0 to its peak."""
    warmup_max_fraction: Annotated[Fraction, beside("training.warmup_epochs", "above 0", bool)] = 0.1
    """Largest fraction of the run spent on warm-up, so that a short run doesn't end at its peak rate."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    step_epochs: Annotated[Count, _OF_STEPS] = 30
    """schedule = step: epochs between two decays."""
    step_gamma: Annotated[float, Field(gt=0, lt=1), _OF_STEPS] = 0.1
    """schedule = step: factor of the learning rate at each decay."""
    optimizer: Annotated[str, OneOf(OPTIMIZERS), Fixed("its optimizer state fits no other")] = "sgd"
    """sgd: with momentum; adamw: Adam with decoupled weight decay; adam: weight decay in the gradient; muon:
    orthogonal updates for the matrices of hidden layers, as large as adamw's at the same rate, and adamw for
    the rest; lion: moves by the sign of momentum, at a tenth of adamw's rate; *_schedule_free: average the
    weights, with no decay of the rate. Unset, it is adamw where no rate of 0.01 or more is given."""
    momentum: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        of_optimizer("momentum"),
        _OF_ITS_OPTIMIZER,
    ] = None
    """sgd, sgd_schedule_free, muon: momentum; unset: 0.9, muon: 0.95."""
    nesterov: Annotated[bool | None, of_optimizer("nesterov"), _OF_ITS_OPTIMIZER] = None
    """sgd, muon: Nesterov momentum; unset: muon only."""
    betas: Annotated[Betas | None, of_optimizer("betas"), _OF_ITS_OPTIMIZER] = None
    """Decay of the averages of gradients and of their squares; unset: [0.9, 0.999], lion: [0.9, 0.99]."""
    eps: Annotated[
        Annotated[float, Field(gt=0)] | None,
        of_optimizer("eps"),
        _OF_ITS_OPTIMIZER,
    ] = None
    """adamw, adam, muon, adamw_schedule_free: term added to the denominator; unset: 1e-8."""
    weight_decay: Annotated[float, Field(ge=0), _OF_OPTIMIZER] = 1e-4
    """Weight decay; not applied to norms, biases, class tokens, position embeddings, and what a network
    names by `no_weight_decay()`."""
    clip_grad_norm: Annotated[Annotated[float, Field(gt=0)] | None, _OF_JOB] = None
    """Maximum total L2 norm of the gradients, applied after unscaling."""
    sync_batch_norm: bool = False
    """Several processes: BatchNorm normalizes by the samples of all of them; off: each by its own. CUDA."""
    label_smoothing: Annotated[
        float, Field(ge=0, lt=1), of_task("label_smoothing"), Live("tasks/classification.py")
    ] = 0.0
    """classification: share of the target spread over all classes; also in the validation loss."""
    loss: Annotated[Annotated[str, OneOf(LOSSES)] | None, of_task("loss"), Live("tasks/build_task.py")] = None
    """segmentation: cross_entropy_dice (unset), cross_entropy, focal, focal_dice or dice, where focal is the
    focal loss with gamma 2, and dice the soft Dice loss. classification: cross_entropy."""
    class_weights: Annotated[
        Literal["balanced"] | list[Annotated[float, Field(gt=0)]] | None,
        of_task("class_weights"),
        Live("tasks/build_task.py"),
    ] = None
    """classification, segmentation: weight of each class in the loss, in the order of the classes; balanced:
    inverse to its number of training samples or pixels. The mean of a batch is divided by its weights.
    Also in the validation loss."""
    noise_schedule: Annotated[NoiseSchedule, of_task("noise_schedule", of_loss=False), _OF_DIFFUSION] = (
        "cosine"
    )
    """diffusion: noise by timestep. cosine (Nichol & Dhariwal 2021), or linear (Ho et al. 2020)."""
    prediction: Annotated[Prediction, of_task("prediction", of_loss=False), _OF_DIFFUSION] = "epsilon"
    """diffusion: what the network predicts. epsilon: the noise; v: the velocity (Salimans & Ho 2022), a mean
    of noise and negative image by the noise level."""
    min_snr_gamma: Annotated[Annotated[float, Field(gt=0)] | None, of_task("min_snr_gamma")] = None
    """diffusion: the loss of nearly clean images is weighted down to that of this signal-to-noise ratio
    (Min-SNR, Hang et al. 2023, who use 5); unset: all timesteps are equal."""
    label_dropout: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None, of_network("class_conditional"), OF_CLASSES
    ] = None
    """diffusion with classes: fraction of samples whose class is hidden, so that the network learns images
    without one too, for classifier-free guidance (Ho & Salimans 2022); unset: 0.1."""
    primary_metric: Annotated[str | None, Fixed("its best checkpoint was chosen by it")] = None
    """Validation metric that decides which epoch is best, and when to stop early: val_loss, or
    classification: acc1 (unset), acc5 (with more than 5 classes), balanced_accuracy, macro_f1,
    macro_precision, macro_recall, auroc; segmentation: iou (unset), dice, miou, pixel_acc; diffusion: r2
    (unset); vae: psnr (unset)."""
    early_stopping_patience: Annotated[Count | None, Live("engine/epochs.py")] = None
    """Epochs without a better primary metric after which the run stops."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average (EMA) of the weights, lower in the first steps; validation uses
    the average."""
    seed: Annotated[int, Field(ge=0, lt=2**63), _OF_SAMPLES] = 0
    """Seed for weights, order and augmentation; not for the validation set: data.split_seed."""
    deterministic: bool = False
    """Bit-identical results on the same hardware and versions; slower on a GPU."""


class DataConfig(Table):
    """The data set, its augmentation and its loading."""

    name: Annotated[str | None, _OF_SAMPLES] = None
    """`shapes` (built in), a torchvision set (cifar10, mnist, fashionmnist, oxford-pets, imagenette, …), or
    your own as `package.module:name` (with --trust-code)."""
    path: str | None = None
    """A folder with class folders, with images and masks, with Parquet files or tar shards, or with images
    only; for a named set, the folder where it is stored."""
    download: bool = False
    """Download a named torchvision set if it is missing."""
    samples: Annotated[Count | None, OF_BUILT_IN, _OF_SAMPLES] = None
    """shapes: training images; unset: depends on the device. The validation set is half as large."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Side of the network's input in pixels; unset: of pretrained weights, else 32 or 64 for images with
    classes of up to as many pixels, else 224 (unet: 512, diffusion_unet, vae: 64), on a CPU 64 (unet: 128,
    diffusion_unet, vae: 32)."""
    resize: Annotated[int, Field(ge=8, le=16_384)] | None = None
    """Shorter side in pixels that images are resized to, never enlarged, before views are cut from them, with
    any cache and by `mptui prepare`; unset: twice image_size."""
    interpolation: Annotated[
        Interpolation | None, Fixed("its network learns images that were resampled so")
    ] = None
    """Filter that resamples images, antialiased; masks are resampled by nearest neighbour. Unset: that of
    pretrained weights, else bilinear."""
    crop_pct: Annotated[Annotated[float, Field(gt=0, le=1)] | None, of_samples(SampleKind.CLASS)] = None
    """classification: fraction of the shorter side in the centre crop of validation; unset: of pretrained
    weights, else 0.875."""
    crop_scale: Annotated[Range | None, _OF_CROPS, _OF_VIEWS] = None
    """Random resized crops: smallest and largest fraction of the image's area; unset: [0.08, 1] for classes
    from 128 px on, [0.35, 1] below, [0.6, 1] of images of up to 64 px, [0.4, 1] for masks."""
    crop_ratio: Annotated[Range, _OF_CROPS, _OF_VIEWS] = Field(default=[3 / 4, 4 / 3])
    """Random resized crops: smallest and largest ratio of width to height."""
    bands: Annotated[Literal["rgb", "all"], Fixed("its weights fit no other images")] = "rgb"
    """rgb: images are read as 8-bit RGB; all: as they are stored, e.g. TIFF and PNG with all bands and bits
    (uint8, uint16, int16, float32), and normalised by the training set's own mean and std."""
    mean: Annotated[list[float], Field(min_length=1)] | None = None
    """Mean of each channel, of pixels in 0..1 (of more than 8 bits: as stored), subtracted from images;
    unset: of pretrained weights, else ImageNet's (diffusion: 0.5); with bands = all, measured."""
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = None
    """Standard deviation of each channel, of pixels in 0..1, that images are divided by; unset: as `mean`."""
    val_fraction: Annotated[float, Field(gt=0, lt=1), OF_OTHER_DATA, _OF_SAMPLES] = 0.2
    """Fraction of the samples held out, per class, where the data has no validation folder."""
    split_seed: Annotated[Annotated[int, Field(ge=0, lt=2**63)] | None, _OF_SAMPLES] = 0
    """Seed of the held-out samples, of the built-in images, and of what is random in validation, so that runs
    with other seeds are compared over the same images; unset: that of training.seed, as in runs of earlier
    versions."""
    ignore_index: Annotated[
        Annotated[int, Field(ge=0, le=65535)] | None, of_samples(SampleKind.MASK), OF_OTHER_DATA
    ] = None
    """Mask value that loss and metrics ignore."""
    mask_orientation: Annotated[
        Literal["auto", "upright", "stored"], of_samples(SampleKind.MASK), OF_OTHER_DATA
    ] = "auto"
    """segmentation: where a photograph is stored turned (EXIF) and the shape of its mask fits both: upright:
    masks are drawn over photographs as they are shown; stored: as they are stored; auto: as the shapes of the
    other masks say."""
    class_folders: Annotated[Literal["auto", "outer", "inner"], OF_FOLDERS] = "auto"
    """classification: where class folders have folders, which of the two are the classes; auto: outer ones
    if the names of inner ones repeat or images lie beside them, else refused."""
    sampler: Annotated[Literal["uniform", "balanced"], of_samples(SampleKind.CLASS), _OF_LOADER] = "uniform"
    """classification: samples of an epoch. uniform: each once; balanced: as many, equally many of each class,
    so that those of a small class are repeated, each time with another view."""
    workers: Annotated[
        Annotated[int, Field(ge=0, le=256)] | Literal["auto"], Live("runs/planning/change.py")
    ] = "auto"
    """Processes that load and decode images; 0: the training thread; auto: from the number of CPUs."""
    prefetch: Annotated[
        int,
        Field(ge=1, le=64),
        beside("data.workers", "above 0", bool, said=True),
        _OF_LOADER,
    ] = 4
    """Batches prefetched by each worker."""
    cache: Literal["auto", "off", "ram", "device"] = "auto"
    """Cache of decoded images. device: all images, not yet normalised, in device memory, filled before the
    first epoch; ram: in memory shared by the workers, filled as images are read; auto: device or ram if they
    fit; your own data whose samples draw random numbers is not cached. On a GPU, device resamples random
    crops there: less than 1 of 255 in the mean from the other modes."""
    augment: Annotated[
        Literal["default", "none"] | list[Annotated[str, OneOf(TRANSFORMS, or_own=True)]],
        of_tasks(CLASSIFICATION, SEGMENTATION, DIFFUSION),
        beside("model.vae", "none", lambda vae: vae is None),
        _OF_LOADER,
    ] = "default"
    """Random transforms of training images. default: crop, flip and colour (diffusion: flip; vae: none);
    none: only a resize; or a list of names (docs/data.md has each), with vertical_flip and turn for images
    without an up, as of a microscope or from the air; also your own as `package.module:name` (with
    --trust-code)."""
    mixup_alpha: Annotated[float, Field(ge=0), of_samples(SampleKind.CLASS), _OF_LOADER] = 0.0
    """classification: mixup with Beta(alpha, alpha); 0: off."""
    cutmix_alpha: Annotated[float, Field(ge=0), of_samples(SampleKind.CLASS), _OF_LOADER] = 0.0
    """classification: CutMix with Beta(alpha, alpha); 0: off. With both, each batch uses one at random."""
    bad_sample_budget: Annotated[Fraction, _OF_LOADER] = 0.01
    """Largest fraction of unreadable files that a run leaves out; with more, it ends with exit code 3."""

    @property
    def channels(self) -> int:
        """Number of channels of the network's input: of the normalisation, and 3 before it is chosen."""
        return 3 if self.mean is None else len(self.mean)


class RunConfig(Table):
    """The complete configuration of a run: saved as `run.toml`, repeated by `--profile run.toml`."""

    description: str = ""
    """Purpose of the profile, in one line."""
    model: ModelConfig = ModelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    training: TrainingConfig = TrainingConfig()
    speed: SpeedConfig = SpeedConfig()
    memory: MemoryConfig = MemoryConfig()
    data: DataConfig = DataConfig()
    sampling: SamplingConfig = SamplingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardsConfig = GuardsConfig()
    logging: LoggingConfig = LoggingConfig()
    hardware: HardwareConfig = HardwareConfig()
    code: CodeConfig = CodeConfig()

    @property
    def split_seed(self) -> int:
        """Seed of the validation set: `data.split_seed`, or that of training where it is unset."""
        return self.training.seed if self.data.split_seed is None else self.data.split_seed

    @model_validator(mode="after")
    def _possible(self) -> "RunConfig":
        """Refuse settings that exclude each other; each fault names its keys."""
        faults = []
        if self.training.deterministic and self.speed.compile in {"max-autotune", "reduce-overhead"}:
            faults.append(
                f'training.deterministic with speed.compile = "{self.speed.compile}": '
                'autotuning is not repeatable; use "default" or "off"'
            )
        faults += _optimizer_faults(self.training)
        faults += shard_faults(self)
        if self.training.class_weights is not None and self.training.loss == "dice":
            faults.append(
                'training.class_weights with training.loss = "dice": only other losses are weighted'
            )
        has_vae = bool(self.model.vae) or self.model.name == "vae"
        normalization = [*(self.data.mean or ()), *(self.data.std or ())]
        if has_vae and not all(value in {None, 0.5} for value in normalization):
            faults.append("data.mean and data.std with a VAE: its pixels are in -1..1; leave them out")
        means, stds = self.data.mean or [0.0], self.data.std or [1.0]
        if max(map(abs, means)) > _LARGEST * min(stds) or min(stds) * _LARGEST < 1:
            faults.append(
                "data.mean and data.std leave no image finite: they are those of pixels in 0..1, or as stored"
            )
        scaler = self.precision.grad_scaler
        if scaler.min_scale > scaler.init_scale:
            faults.append("precision.grad_scaler.min_scale is above precision.grad_scaler.init_scale")
        if self.guards.detect_anomaly and self.speed.compile != "off":
            faults.append('guards.detect_anomaly needs eager mode: set speed.compile = "off"')
        if self.logging.wandb_name is not None and self.logging.wandb_project is None:
            faults.append("logging.wandb_name needs logging.wandb_project")
        for name, pair in (("crop_scale", self.data.crop_scale), ("crop_ratio", self.data.crop_ratio)):
            if pair is not None and pair[0] > pair[1]:
                faults.append(f"data.{name}: {pair[0]:g} is above {pair[1]:g}; put the smaller one first")
        if self.data.crop_scale is not None and self.data.crop_scale[1] > 1:
            faults.append(f"data.crop_scale: {self.data.crop_scale[1]:g} is more than the whole image")
        if isinstance(names := self.data.augment, list) and len({*names}) < len(names):
            faults.append("data.augment has a transform twice: name each once")
        if self.data.bands == "all" and self.data.name is not None:
            faults.append('data.bands = "all" needs data.path: sets by name are read as 8-bit RGB')
        if self.data.download and (self.data.name in {None, "shapes"} or is_own(self.data.name)):
            faults.append("data.download needs data.name, the name of a torchvision set")
        if faults:
            raise ValueError("\n".join(faults))
        return self


def _optimizer_faults(training: TrainingConfig) -> list[str]:
    """Return the settings that the optimizer does not take, a line each."""
    name, spec = training.optimizer, OPTIMIZERS[training.optimizer]
    faults = []
    if training.nesterov and training.momentum == 0:
        faults.append("training.nesterov needs training.momentum above 0")
    if not spec.averages:
        return faults
    if training.ema_decay is not None:
        faults.append(
            f'training.ema_decay with training.optimizer = "{name}", which averages the weights itself: '
            'set training.ema_decay = "none"'
        )
    if "momentum" in spec.settings and training.momentum == 0:
        faults.append(f'training.optimizer = "{name}" needs training.momentum above 0')
    if training.betas is not None and not training.betas[0]:
        faults.append(f'training.optimizer = "{name}" needs the first of training.betas above 0')
    return faults


def shard_faults(config: RunConfig) -> list[str]:
    """Return the settings that sharded weights exclude, a line each."""
    mode, optimizer = config.speed.compile, config.training.optimizer
    faults = {
        f'speed.compile = "{mode}": sharded weights are not compiled; use "off"': mode != "off",
        f'training.optimizer = "{optimizer}": it needs whole matrices; use "adamw"': (
            OPTIMIZERS[optimizer].matrix_state_bytes is not None
        ),
        'memory.micro_batch = "auto": no rank can try alone what fits; give a number': (
            config.memory.micro_batch == "auto"
        ),
        "memory.budget_gib: the part of a rank is not counted": config.memory.budget_gib is not None,
    }
    return [f"memory.shard with {fault}" for fault, there in faults.items() if config.memory.shard and there]
