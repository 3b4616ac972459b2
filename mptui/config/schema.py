"""The schema of a run: every table and key of a profile, with its meaning, its unit and its default.

A profile names a subset of these; what it leaves out has the default here. Keys are the fixed names that
profiles, `--set table.key=value` and `MPTUI_TABLE_KEY` share. No runtime object ever lives in here.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mptui.config.one_of import OneOf
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.trackers import TRACKERS

PrecisionMode = Literal["auto", "bf16", "fp16", "fp32"]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune"]
NumericsMode = Literal["off", "summary", "full"]

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
"""The least and the largest of something."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Table(BaseModel):
    """A table of a profile: unknown keys are errors, values are never coerced from another type."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ModelConfig(Table):
    """What network is trained."""

    name: str | None = None
    """A torchvision classifier (`resnet50`, …), `unet` or `diffusion_unet`; unset: as suits the data."""
    weights: str | None = None
    """A local weights file (.safetensors, or .pth read without unpickling code); unset: random."""
    width: Annotated[int, Field(ge=1, le=1024)] = 64
    """unet: channels of the first level; each level below doubles them. diffusion_unet: each level below adds
    as many; left open: 128, on a CPU 32."""
    depth: Annotated[int, Field(ge=1, le=6)] = 4
    """unet, diffusion_unet: how many times the resolution is halved; diffusion_unet, left open: 3."""
    up: Literal["transposed", "bilinear"] = "transposed"
    """unet: how the decoder raises the resolution."""
    norm: Literal["batch", "group"] = "batch"
    """unet: the normalisation after each convolution."""


class GradScalerConfig(Table):
    """Dynamic loss scaling of fp16 (torch.amp.GradScaler's four numbers, with its defaults)."""

    init_scale: Annotated[float, Field(gt=0)] = 65536.0
    """The first loss scale."""
    growth_factor: Annotated[float, Field(gt=1)] = 2.0
    """What the scale is multiplied by after `growth_interval` good steps in a row."""
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What the scale is multiplied by after a step with a non-finite gradient."""
    growth_interval: Count = 2000
    """Good steps in a row before the scale grows."""
    min_scale: Annotated[float, Field(gt=0)] = 1.0
    """The scale never falls below this: at 0, one clean step would turn all weights NaN."""


class PrecisionConfig(Table):
    """In what number format the network computes."""

    mode: PrecisionMode = "auto"
    """auto measures what is fastest; what the device lacks falls back bf16, fp16, fp32, with a warning."""
    tf32: bool = True
    """Let fp32 convolutions and matrix products use TensorFloat-32 where the device has it."""
    fp32_layers: list[str] = []
    """Layers that compute in fp32 whatever the mode: names as in the network, `*` stands for any part."""
    grad_scaler: GradScalerConfig = GradScalerConfig()


class TrainingConfig(Table):
    """How the network learns."""

    epochs: Count = 10
    """Passes over the training set."""
    max_steps: Count | None = None
    """Stop after so many optimizer steps, if that comes first; the schedule ends there too."""
    batch_size: Count = 64
    """Samples a micro-batch: what goes through the network at once."""
    accumulate: Count = 1
    """Micro-batches an optimizer step; the gradient is that of their valid items taken together."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    """The peak learning rate, for a batch of `lr_batch_size`."""
    lr_scaling: Literal["linear", "sqrt", "off"] = "linear"
    """How `lr` follows the effective batch (batch_size x accumulate) away from `lr_batch_size`."""
    lr_batch_size: Count | None = None
    """The effective batch that `lr` was chosen for; unset: the one in use, so nothing is scaled."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs over which the rate rises linearly from near 0 to its peak."""
    warmup_max_fraction: Fraction = 0.1
    """Share of the run that the warm-up takes at most: a short run would otherwise end at its peak rate."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """How the rate falls after the warm-up."""
    step_epochs: Count = 30
    """schedule = step: epochs between two drops."""
    step_gamma: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """schedule = step: what each drop multiplies the rate by."""
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "sgd"
    """sgd has (Nesterov-free) momentum; adamw has decoupled weight decay."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """sgd: the momentum."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of weights; norms and biases have none."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Scale gradients down to this total L2 norm, after unscaling."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a target spread over all classes (classification)."""
    early_stopping_patience: Count | None = None
    """Stop after so many epochs without a better validation metric."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the weights, and validate with it; it forgets faster at first."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Everything random derives from it: weights, order, augmentation."""
    deterministic: bool = False
    """Bit-identical results on the same hardware and versions; slower on a GPU."""


class SpeedConfig(Table):
    """What makes a step faster and changes no result beyond rounding."""

    compile: CompileMode = "off"
    """torch.compile's mode; used where it can repay itself in this run (`--compile` forces it)."""
    channels_last: bool | Literal["auto"] = "auto"
    """Keep images and convolution weights as NHWC in memory; auto measures it."""
    fused: bool | Literal["auto"] = "auto"
    """Update all weights in one fused kernel, which skips a bad step without a sync; auto measures it."""


class MemoryConfig(Table):
    """How a step fits into the device's memory."""

    micro_batch: Count | Literal["auto"] | None = None
    """Samples at once, fewer than `batch_size`; auto: the most that fit, looked for before the start."""


class DataConfig(Table):
    """What is learnt from, and how it reaches the device."""

    name: str | None = None
    """`shapes` (built in), or a torchvision set: cifar10, mnist, fashionmnist, oxford-pets, imagenette, …"""
    path: str | None = None
    """A folder of class folders, images and masks, or images alone; of a named set, where it is or is put."""
    download: bool = False
    """Fetch a named torchvision set if it is not there."""
    samples: Count | None = None
    """shapes: images of the training set; unset: by device. The validation set is half as large."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Side in pixels of what the network sees; unset: 224 (unet: 512, diffusion_unet: 64), on a CPU 64 (unet:
    128, diffusion_unet: 32)."""
    resize: Annotated[int, Field(ge=8, le=16_384)] | None = None
    """Shorter side in pixels that images are resized to, never enlarged, before views are cut from them, with
    any cache and by `mptui prepare`; unset: twice image_size."""
    crop_scale: Range | None = None
    """Random resized crops: the least and the largest share of the image's area; unset: [0.08, 1] for classes
    from 128 px on, [0.35, 1] below, [0.4, 1] for masks."""
    crop_ratio: Range = [3 / 4, 4 / 3]
    """Random resized crops: the smallest and the largest width over height."""
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the samples held out where the data has no validation folder; by the seed, class by class."""
    ignore_index: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Mask value that counts for nothing, in the loss and in the metrics."""
    workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = "auto"
    """Processes that decode; 0: the training thread itself; auto: by the processors there are."""
    prefetch: Annotated[int, Field(ge=1, le=64)] = 4
    """Batches a worker keeps ready."""
    cache: Literal["auto", "off", "ram", "device"] = "auto"
    """Keep decoded images: device: all of them there, as uint8, before the first epoch; ram: in memory that
    the workers share, as they are read; auto: device or ram where they fit, and why is said at the start."""
    augment: Literal["default", "none"] = "default"
    """default: flips, random resized crops, colour (diffusion: mirror images); none: only a resize."""
    mixup_alpha: Annotated[float, Field(ge=0)] = 0.0
    """Beta(alpha, alpha) of mixup (classification); 0: off."""
    cutmix_alpha: Annotated[float, Field(ge=0)] = 0.0
    """Beta(alpha, alpha) of cutmix (classification); 0: off. With both, each batch takes one by chance."""
    bad_sample_budget: Fraction = 0.01
    """Share of unreadable files that the run goes on without; beyond it, exit code 3."""


class CheckpointConfig(Table):
    """When the run is saved; it always is at the end of an epoch, on a new best, and when it is stopped."""

    every_steps: Count | None = None
    """Also after so many optimizer steps."""
    every_minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """Also after so many minutes."""
    keep: Count = 2
    """How many of the last checkpoints stay on the disk, beside the best."""


class GuardsConfig(Table):
    """What watches over the run."""

    on_nan: Literal["rollback", "stop", "ignore"] = "rollback"
    """Divergence: go back to the last good state and on with gentler settings, stop, or only count."""
    on_oom: Literal["split", "stop"] = "split"
    """Out of memory: the same batch again in smaller pieces, or stop."""
    snapshot_every: Count = 500
    """Steps between two snapshots in memory that a rollback can go back to."""
    max_recoveries: Count = 8
    """Gentler settings that are tried after divergence before the run gives up."""
    max_skipped_streak: Count = 50
    """Steps in a row with non-finite gradients after which the run counts as diverged."""
    detect_anomaly: bool = False
    """Let autograd name the operation that made a NaN; slow, for bug hunts."""
    check_batches: bool = False
    """Look at every batch and loss for values that can't be right; syncs each step, for bug hunts."""
    numerics: NumericsMode = "summary"
    """What 16 bits do to the numbers: full looks at every value of a step now and then, summary at some."""
    hang_minutes: Annotated[float, Field(ge=0)] = 5.0
    """Minutes in which nothing ends before all stacks are written to stacks.txt; 0: never."""


class LoggingConfig(Table):
    """What is written down, and how often."""

    step_interval_s: Annotated[float, Field(ge=0)] = 0.5
    """Seconds between two step events; 0: one for each step."""
    trackers: list[Annotated[str, OneOf(TRACKERS)]] = []
    """Experiment trackers that log the run's metrics."""
    tensorboard: bool = False
    """Write TensorBoard files into the run directory."""
    wandb_project: str | None = None
    """Send the metrics to this Weights & Biases project (needs the wandb package)."""
    wandb_name: str | None = None
    """The run's name there; unset: this run's own."""


class HardwareConfig(Table):
    """What the run trains on."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N, xpu, or mps."""


class RunConfig(Table):
    """A whole run, resolved: what `run.toml` holds and `--profile run.toml` repeats."""

    description: str = ""
    """What the profile is for, in a line."""
    model: ModelConfig = ModelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    training: TrainingConfig = TrainingConfig()
    speed: SpeedConfig = SpeedConfig()
    memory: MemoryConfig = MemoryConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardsConfig = GuardsConfig()
    logging: LoggingConfig = LoggingConfig()
    hardware: HardwareConfig = HardwareConfig()

    @model_validator(mode="after")
    def _possible(self) -> "RunConfig":
        """Refuse pairs that can't be had together; each fault names its keys."""
        faults = []
        if self.training.deterministic and self.speed.compile in {"max-autotune", "reduce-overhead"}:
            faults.append(
                f'training.deterministic with speed.compile = "{self.speed.compile}": '
                'autotuning is not repeatable; use "default" or "off"'
            )
        scaler = self.precision.grad_scaler
        if scaler.min_scale > scaler.init_scale:
            faults.append("precision.grad_scaler.min_scale is above precision.grad_scaler.init_scale")
        if self.guards.detect_anomaly and self.speed.compile != "off":
            faults.append('guards.detect_anomaly needs eager code: set speed.compile = "off"')
        if self.logging.wandb_name is not None and self.logging.wandb_project is None:
            faults.append("logging.wandb_name needs logging.wandb_project")
        for name, pair in (("crop_scale", self.data.crop_scale), ("crop_ratio", self.data.crop_ratio)):
            if pair is not None and pair[0] > pair[1]:
                faults.append(f"data.{name}: {pair[0]:g} is above {pair[1]:g}; the least comes first")
        if self.data.crop_scale is not None and self.data.crop_scale[1] > 1:
            faults.append(f"data.crop_scale: {self.data.crop_scale[1]:g} is more than the whole image")
        if self.data.download and self.data.name in {None, "shapes"}:
            faults.append("data.download needs data.name, the name of a torchvision set")
        if faults:
            raise ValueError("\n".join(faults))
        return self
