"""The tasks by name: what is learnt, from what data, how metrics are shown. torch is imported by `build`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mptui.registry.names import NoiseSchedule, Prediction, SampleKind

if TYPE_CHECKING:
    from mptui.tasks.base import Task

T = TypeVar("T")

CLASSIFICATION, SEGMENTATION, DIFFUSION = "classification", "segmentation", "diffusion"
RECONSTRUCTION = "reconstruction"

VAL_LOSS = "val_loss"
"""The validation loss as the primary metric of any task; of all of them, only here is smaller better."""

_MASK_LOSS = "cross_entropy_dice"
LOSSES = ("cross_entropy", "cross_entropy_dice", "focal", "focal_dice", "dice")
"""The values of `training.loss`."""

LABEL_DROPOUT = 0.1
"""As in Ho and Salimans (2022), where a fraction of 0.1 or 0.2 is best."""

DEFAULT_TASK = CLASSIFICATION
"""The task where neither a network nor data says which."""

ASSUMED_CLASSES = 10
"""Classes of a network whose data is not known."""


@dataclass(frozen=True, slots=True)
class ByDevice(Generic[T]):
    """A default for an accelerator, and the one for a CPU."""

    accelerator: T
    cpu: T

    def on(self, kind: str) -> T:
        """The default on a device of this kind (cuda, mps, cpu, …)."""
        return self.cpu if kind == "cpu" else self.accelerator


FEW_IMAGES = 5_000
"""Training images up to which a ResNet-18 learns more than a ResNet-50 in half the time: measured with 392,
1,000 and 4,000 (docs/recipes.md)."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """How a metric is shown: the title of its chart, its word there, and whether it is a fraction of 1."""

    chart: str
    word: str = ""
    fraction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task.

    Attributes:
        build: Called as `build(classes, **settings)` with the names of the classes. Returns loss and metrics.
        sample: What it needs of a sample.
        output: What its networks do with an image, for a sentence.
        network: The network that is trained where none is named: a key of `mptui.registry.models.MODELS`.
        side: Height and width of the images in pixels where none is set.
        metrics: How each metric is shown. The first is the primary one if `training.primary_metric` is unset.
        settings: The keys of [training] that `build` takes; of `class_weights` it is given a list, or None.
        losses: The values of `training.loss`.
        unset: table.key -> what it means where it is unset, and only code says so.
        defaults: table.key -> default, where the schema's would hardly train.
        recipe: The same, of an optimizer and what belongs to it: for runs that name no other one, and no rate
            of `other_rates` or more, which are those of the schema's optimizer.
        few: The network in place of `network` where the set has at most `FEW_IMAGES` for training; "": none.
        like: The task whose tables of a profile apply too, before its own, as far as it has their settings.
        use: What a trained network is for, and the command; `{run}` is the run.
        hub_tag: The task as model cards of the Hugging Face Hub name it (`pipeline_tag`).
    """

    build: "Callable[..., Task]"
    sample: SampleKind
    output: str
    network: ByDevice[str]
    side: ByDevice[int]
    metrics: Mapping[str, MetricSpec]
    settings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    unset: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    other_rates: float = 0.0
    few: str = ""
    like: str = ""
    use: str = "predict files: mptui predict {run} INPUT…"
    hub_tag: str = ""

    @property
    def primaries(self) -> tuple[str, ...]:
        """The metrics that can be the primary one."""
        return (*self.metrics, VAL_LOSS)

    def chart(self, primary: str) -> str:
        """Return the title of the chart of a primary metric; for the loss or none, that of the first one."""
        if primary in {"", VAL_LOSS}:
            return next(iter(self.metrics.values())).chart
        return self.metrics.get(primary, MetricSpec(primary)).chart


def _classification(
    classes: Sequence[str], *, label_smoothing: float, class_weights: Sequence[float] | None
) -> "Task":
    from mptui.tasks.classification import Classification

    return Classification(classes, label_smoothing, class_weights)


def _segmentation(
    classes: Sequence[str], *, loss: str | None, class_weights: Sequence[float] | None
) -> "Task":
    from mptui.tasks.segmentation import Segmentation

    return Segmentation(classes, loss or _MASK_LOSS, class_weights)


def _diffusion(
    classes: Sequence[str],
    *,
    noise_schedule: NoiseSchedule,
    prediction: Prediction,
    min_snr_gamma: float | None,
) -> "Task":
    from mptui.tasks.diffusion import Diffusion

    return Diffusion(noise_schedule, prediction, min_snr_gamma)


def _reconstruction(classes: Sequence[str]) -> "Task":
    from mptui.tasks.diffusion import Reconstruction

    return Reconstruction()


TASKS: dict[str, TaskSpec] = {
    CLASSIFICATION: TaskSpec(
        build=_classification,
        hub_tag="image-classification",
        sample=SampleKind.CLASS,
        output="gives each image a class",
        network=ByDevice("resnet50", cpu="resnet18"),
        side=ByDevice(224, cpu=64),
        metrics={
            "acc1": MetricSpec("top-1", "top-1", fraction=True),
            "acc5": MetricSpec("top-5", "top-5", fraction=True),
            "balanced_accuracy": MetricSpec("balanced accuracy", fraction=True),
            "macro_f1": MetricSpec("macro F1", fraction=True),
            "macro_precision": MetricSpec("macro precision", fraction=True),
            "macro_recall": MetricSpec("macro recall", fraction=True),
            "auroc": MetricSpec("AUROC", fraction=True),
        },
        settings=("label_smoothing", "class_weights"),
        losses=("cross_entropy",),
        recipe={
            "training.optimizer": "adamw",
            "training.lr": 1e-3,
            "training.lr_batch_size": 64,
            "training.lr_scaling": "sqrt",
            "training.weight_decay": 0.05,
            "training.warmup_epochs": 1.0,
            "training.clip_grad_norm": 1.0,
        },
        other_rates=0.01,
        few="resnet18",
    ),
    SEGMENTATION: TaskSpec(
        build=_segmentation,
        hub_tag="image-segmentation",
        sample=SampleKind.MASK,
        output="gives each pixel a class",
        network=ByDevice("unet", cpu="unet"),
        side=ByDevice(512, cpu=128),
        metrics={
            "iou": MetricSpec("overlap", "IoU", fraction=True),
            "dice": MetricSpec("overlap", "Dice", fraction=True),
            "miou": MetricSpec("mean IoU", fraction=True),
            "pixel_acc": MetricSpec("pixel accuracy", fraction=True),
        },
        settings=("loss", "class_weights"),
        losses=LOSSES,
        unset={"training.loss": _MASK_LOSS},
        defaults={
            "training.batch_size": 8,
            "training.optimizer": "adamw",
            "training.lr": 1e-3,
            "training.weight_decay": 0.01,
        },
    ),
    DIFFUSION: TaskSpec(
        build=_diffusion,
        hub_tag="unconditional-image-generation",
        sample=SampleKind.IMAGE,
        output="generates images",
        network=ByDevice("diffusion_unet", cpu="diffusion_unet"),
        side=ByDevice(64, cpu=32),
        metrics={"r2": MetricSpec("noise explained", "R²", fraction=True)},
        settings=("noise_schedule", "prediction", "min_snr_gamma"),
        unset={"training.label_dropout": LABEL_DROPOUT},
        use="make images: mptui sample {run} --out DIR",
        defaults={
            "training.batch_size": 32,
            "training.optimizer": "adamw",
            "training.lr": 5e-4,
            "training.clip_grad_norm": 1.0,
            "training.ema_decay": 0.999,
        },
    ),
    RECONSTRUCTION: TaskSpec(
        build=_reconstruction,
        sample=SampleKind.IMAGE,
        output="encodes images as latents",
        network=ByDevice("vae", cpu="vae"),
        side=ByDevice(64, cpu=32),
        metrics={"psnr": MetricSpec("PSNR in dB", "PSNR")},
        defaults={
            "training.batch_size": 32,
            "training.optimizer": "adamw",
            "training.lr": 1e-3,
            "training.clip_grad_norm": 1.0,
            "training.ema_decay": 0.99,
        },
        like=DIFFUSION,
        use="export it for latent diffusion: mptui export {run} --format diffusers --out DIR",
    ),
}
"""Name -> task."""


def task_for(kind: SampleKind) -> str:
    """The first task that learns from samples of `kind`."""
    return next(name for name, spec in TASKS.items() if spec.sample is kind)


def metric_spec(metric: str) -> MetricSpec:
    """Return how a metric is shown; an unknown one has its own chart."""
    known = (spec.metrics[metric] for spec in TASKS.values() if metric in spec.metrics)
    return next(known, MetricSpec(metric))


def metric_word(metric: str) -> str:
    """Return the name of a metric on screens and in messages; in files and settings it is `metric` itself."""
    spec = metric_spec(metric)
    return spec.word or spec.chart
