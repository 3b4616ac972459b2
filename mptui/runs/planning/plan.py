"""All values decided, with reasons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, lcm, log2
from pathlib import Path
from typing import Any

import tomli

from mptui.config.change import CHOSEN_BATCH, RECIPE_OF_BATCH
from mptui.config.keys import SETTINGS, training_of, value_of, with_values
from mptui.config.profiles import is_built_in
from mptui.config.resolve import Resolved, resolve
from mptui.config.schema import DataConfig, RunConfig, TrainingConfig
from mptui.data.open import few_samples, kind_of, small_side
from mptui.data.transforms import (
    CROP_PCT,
    CROP_RATIO,
    HALF,
    SMALL_CROPS,
    default_crop_scale,
    default_normalization,
    default_resize,
)
from mptui.engine.optim.schedule import scaled_lr, warmup_epochs
from mptui.errors import ConfigError
from mptui.hardware.advice import PrecisionChoice, choose_precision, default_workers
from mptui.hardware.devices import Device, Machine, check_torch, default_reason, find_machine, select_device
from mptui.io.files import absolute, expanded
from mptui.models.vae_layout import digest
from mptui.processes.rank_place import RankPlace, number_of
from mptui.registry.models import MODELS, PRETRAINED, ModelSpec, find_model, task_of_model
from mptui.registry.names import BUILT_IN, LOSS_SCALED, Interpolation, SampleKind
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.own_code import allow, is_given, is_own, load
from mptui.registry.tasks import (
    CLASSIFICATION,
    DEFAULT_TASK,
    FEW_IMAGES,
    SEGMENTATION,
    TASKS,
    ByDevice,
    TaskSpec,
    task_for,
)
from mptui.registry.transforms import TRANSFORMS, Augment, find_transform, transforms_of
from mptui.runs.store.choices import BY_BUDGET
from mptui.runs.store.directory import CONFIG

# Plans a run from a request: chooses the device, the precision, and all unset values
# -----------------------------------------------------------------------------------
# `mptui run --dry-run` prints a plan, and `run.toml` stores it.

_SCALER = "precision.grad_scaler."
NO_DATA = "chosen: no data given"
"""Source of the built-in images, where none are named."""

_IMAGES_OF = {
    SampleKind.CLASS: "images with classes",
    SampleKind.MASK: "images with masks",
    SampleKind.IMAGE: "images that a network learns to make",
}
_SAMPLES = ByDevice(8192, cpu=128)
"""Number of training samples of the built-in set."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request of the user, independent of machine and data."""

    profile: str | None = None
    flags: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    sets: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    trust_code: bool = False
    """Whether the person's own code may run: `--trust-code`. Never saved: each start asks for it again."""
    notes: tuple[str, ...] = ()
    """What a person should know of these settings."""
    task: str | None = None
    """The task where the settings leave it to the data; None: look at the data."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete run, except for values that depend on the data (cache, compile).

    `auto` settings have the choice of the table of devices until they are measured.
    """

    request: Request
    resolved: Resolved
    task: str
    device: Device
    precision: PrecisionChoice
    workers: int
    driver: str | None
    notes: tuple[str, ...] = ()
    channels_last: bool = True
    fused: bool = True

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.resolved.config

    def data_from_anywhere(self) -> DataConfig:
        """Return the data of the run for a profile: in any folder, and on any machine, it is the same."""
        data = self.config.data
        path = None if data.path is None else str(expanded(data.path).resolve())
        is_chosen = self.resolved.sources["data.samples"].startswith("chosen")
        return data.model_copy(update={"path": path, "samples": None if is_chosen else data.samples})


def plan_run(request: Request, machine: Machine | None = None, place: RankPlace | None = None) -> Plan:
    """Resolve a request on this machine. Imports torch.

    Args:
        request: The user's request.
        machine: This machine, with torch's view; None: detect it now.
        place: The place of this process among several that train together; None: it is alone.

    Raises:
        ConfigError: A value is invalid, the device is missing, torch can't be imported, a launcher started
            several processes, or own code is named, but not trusted.
        DataError: The folder of the data is missing or has an unknown layout.
    """
    if place is None:
        check_single_process(request.environ)
    resolved = resolve_request(request)  # report mistakes before importing torch
    if machine is None:
        machine = find_machine(with_torch=True)
    check_torch(machine)
    device = select_device(resolved.config.hardware.device, machine)
    if place is not None:
        device = device_of(place, device, machine.devices)
    resolved, notes = filled(resolved, device)
    reason = None
    if resolved.config.hardware.device == "auto":
        reason = machine.hidden if device.kind == "cpu" else default_reason(machine.devices)
    config = resolved.config
    task = resolved.task or DEFAULT_TASK
    _check_model(config, task)
    workers = config.data.workers
    cpus = machine.host.cpus_usable
    if config.memory.shard and place is None:
        notes = (*notes, "memory.shard is not used: this is a single process (several: --nproc-per-node)")
    if place is not None:
        check_batch(place.world_size, config.training)
        check_sync_batch_norm(config.training, device)
        cpus = max(1, min(cpus, place.cpus) if place.cpus else cpus // place.local_world_size)
    plan = Plan(
        request=request,
        resolved=resolved,
        task=task,
        device=device,
        precision=choose_precision(config.precision.mode, device),
        workers=default_workers(cpus) if workers == "auto" else workers,
        driver=machine.driver,
        notes=(
            *request.notes,
            *resolved.notes,
            *(() if reason is None else (reason,)),
            *notes,
            *rate_notes(config.training),
        ),
        channels_last=layout_of(config, device),
        fused=bool(config.speed.fused),
    )
    return replace(plan, notes=(*plan.notes, *_unscaled_notes(plan)))


def why_idle(key: str, plan: Plan) -> str:
    """Return why a setting does nothing in a planned run; "" if it acts."""
    training = training_of(plan.config, plan.task)
    if (scope := SETTINGS[key].idle(training)) is not None:
        return scope.refusal(training)
    if key.startswith(_SCALER) and plan.precision.used not in LOSS_SCALED:
        return f"acts with fp16; this run computes in {plan.precision.used}"
    return ""


def _unscaled_notes(plan: Plan) -> Iterator[str]:
    """Yield what to say of settings of the loss scale where the number format that was chosen has none."""
    if plan.config.precision.mode == "fp32":
        return  # told already
    for key, source in plan.resolved.sources.items():
        is_set = key.startswith(_SCALER) and not source.startswith(("default", "profile"))
        if is_set and (why := why_idle(key, plan)):
            yield f"{key} = {value_of(plan.config, key)} ({source}) is ignored: it {why}"


def workers_under(config: RunConfig, plan: Plan) -> int:
    """Return the loader processes of `plan` under other settings."""
    return plan.workers if config.data.workers == "auto" else config.data.workers


def layout_of(config: RunConfig, device: Device) -> bool:
    """Whether images are NHWC in memory: as requested, else as suits the device."""
    asked = config.speed.channels_last
    return device.kind != "mps" if asked == "auto" else asked


def _check_model(config: RunConfig, task: str) -> None:
    from mptui.models.zoo import check

    check(config.model, task, int(config.data.image_size or 0))


def resolve_request(request: Request) -> Resolved:
    """Resolve a request to find the data, and again with the tables of its task; imports no torch.

    Raises:
        ConfigError, DataError: As `plan_run`, apart from the device.
    """

    def resolved_for(task: str | None) -> Resolved:
        return resolve(
            request.profile, task=task, flags=request.flags, sets=request.sets, environ=request.environ
        )

    first = resolved_for(request.task)
    allow_own_code(first.config, trusted=request.trust_code)
    if first.task is not None:
        return first
    kind = kind_of(first.config.data)
    return resolved_for(DEFAULT_TASK if kind is None else task_for(kind))


def scaled_to(request: Request, processes: int, begun: Path | None) -> Request:
    """Multiply the batch size by a number of processes, and the learning rate with it: --scale-batch.

    The rate follows by `training.lr_scaling`: linear, unless set (Goyal et al. 2017, arXiv 1706.02677).

    Args:
        request: The request of a run.
        processes: The number of processes.
        begun: `run.toml` of the run if it has begun: then it keeps the batch size that it has.

    Returns:
        The request with both as flags, which a switch of profile doesn't change.

    Raises:
        ConfigError, DataError: As `resolve_request`.
    """
    training = resolve_request(request).config.training
    if begun is None:
        batch = processes * training.batch_size
        notes = [f"Batch size: {training.batch_size:,} x {processes} processes = {batch:,} (--scale-batch)"]
    else:
        batch = resolve(str(begun), task=None, flags={}, sets=(), environ={}).config.training.batch_size
        notes = [f"Batch size: {batch:,}, as when the run began (--scale-batch)"]
    values: dict[str, Any] = {"training.batch_size": batch}
    if training.lr_batch_size is None:
        values |= {
            "training.lr": training.lr,
            "training.lr_batch_size": training.batch_size * training.accumulate,
        }
    is_scaled = processes > 1 and training.lr_scaling != "off"
    if is_scaled and not training.warmup_epochs:
        notes.append("Warm-up: none, which a rate for a large batch needs (--set training.warmup_epochs=5)")
    sets = [given for given in request.sets if given.partition("=")[0].strip() not in values]
    flags = {**request.flags, **{key: ("--scale-batch", value) for key, value in values.items()}}
    return replace(request, flags=flags, sets=sets, notes=(*request.notes, *notes))


def head_notes(plan: Plan) -> tuple[str, ...]:
    """Return the line on what becomes of the head of the weights that a new run begins with."""
    model, kind = plan.config.model, TASKS[plan.task].sample
    has_no_head = model.weights is None or (model.weights == PRETRAINED and model.encoder is not None)
    if has_no_head or kind is SampleKind.IMAGE:
        return ()
    return (
        "Weights: a head for as many classes as the data has is kept, even if they are others; "
        "another starts from random weights",
    )


def within_budget(plan: Plan, *, precision: str, classes: int, ranks: int) -> Plan:
    """Return the plan with its memory within `memory.budget_gib`, if it has one, in the precision given.

    Args:
        plan: The plan.
        precision: The precision to count in.
        classes: Number of classes of the data.
        ranks: The number of processes that share each batch.

    Raises:
        ConfigError: Not even one sample fits, or the network can't be counted.
    """
    if plan.config.memory.budget_gib is None:
        return plan
    from mptui.engine.memory.ledger import kept_within  # of torch's compiler, which other runs don't need

    config = kept_within(
        plan.config,
        plan.task,
        device=plan.device.kind,
        precision=precision,
        classes=classes,
        ranks=ranks,
    )
    sources = dict(plan.resolved.sources)
    for key in ("memory.micro_batch", "memory.activation_checkpointing"):
        if value_of(config, key) != value_of(plan.config, key):
            sources[key] = BY_BUDGET
    return replace(plan, resolved=replace(plan.resolved, config=config, sources=sources))


def filled(resolved: Resolved, device: Device) -> tuple[Resolved, tuple[str, ...]]:
    """Choose unset values (network, data and their size), with notes."""
    why = "chosen: no GPU" if device.kind == "cpu" else f"chosen for {device.name}"
    config, sources = resolved.config, dict(resolved.sources)
    model, data = config.model, config.data
    if model.weights not in {None, PRETRAINED}:
        model = model.model_copy(update={"weights": absolute(str(model.weights))})
    if model.vae is not None:
        folder = absolute(model.vae)
        known = model.vae_sha256 or digest(Path(folder))
        model = model.model_copy(update={"vae": folder, "vae_sha256": known})
    if model.name is None:
        name, sources["model.name"] = _network(config, TASKS[resolved.task or DEFAULT_TASK], device, why)
        model = model.model_copy(update={"name": name})
    if (spec := find_model(model.name)) is not None:
        left_open = {
            key: d.on(device.kind) for key, d in spec.defaults.items() if sources[f"model.{key}"] == "default"
        }
        model = model.model_copy(update=left_open)
        sources |= dict.fromkeys((f"model.{key}" for key in left_open), why)
    task = task_of_model(str(model.name)) or resolved.task or DEFAULT_TASK
    changes: dict[str, Any] = {}
    if data.name is None and data.path is None:
        changes["name"] = BUILT_IN
        sources["data.name"] = NO_DATA
    named, training = config.model_copy(update={"model": model}), batch_choices(config, sources, task)
    for key, (value, source) in image_choices(_with(named, training), task, device.kind, why).items():
        changes[key], sources[f"data.{key}"] = value, source
    training |= rate_choices(named, sources, task)
    sources |= {key: source for key, (_, source) in training.items()}
    if (changes.get("name") or data.name) == BUILT_IN and data.samples is None:
        changes["samples"] = _SAMPLES.on(device.kind)
        sources["data.samples"] = why
    if data.path is not None:
        changes["path"] = absolute(data.path)  # the run may be resumed from another folder
    data = data.model_copy(update=changes)
    notes = []
    if config.model.name is None or "name" in changes:
        notes.append(
            f"{model.name} at {data.image_size} px on {data.path or data.name} "
            "(choose with --model, --data, --set data.image_size=N)"
        )
    recipe, optimizer, rate = TASKS[task].recipe, "training.optimizer", "training.lr"
    if recipe and sources[optimizer] == "default" != sources[rate]:
        notes.append(
            f"{config.training.optimizer}, for which a rate of {config.training.lr:g} is ({sources[rate]}); "
            f"{recipe[optimizer]}, the default, takes about {recipe[rate]:g} (training.optimizer)"
        )
    notes += filter(None, [_for_large_sets(resolved, config.data, TASKS[task])])
    filled = with_code_folder(config.model_copy(update={"model": model, "data": data}))
    return replace(resolved, config=_with(filled, training), sources=sources), tuple(notes)


def _with(config: RunConfig, choices: "Choices") -> RunConfig:
    return with_values(config, {key: value for key, (value, _) in choices.items()})


def _network(config: RunConfig, task: TaskSpec, device: Device, why: str) -> tuple[str, str]:
    """Return the network where none is named, and the source of the choice."""
    usual = task.network.on(device.kind)
    if task.few not in {"", usual} and (count := few_samples(config.data, FEW_IMAGES)) is not None:
        return task.few, _of_few(count)
    return usual, why


def _for_large_sets(resolved: Resolved, data: DataConfig, task: TaskSpec) -> str:
    """Say which profile suits, where a built-in one has another optimizer than the recipe, for large sets."""
    training, optimizer = resolved.config.training, "training.optimizer"
    is_of_profile = is_built_in(resolved.profile) and resolved.sources[optimizer].startswith("profile ")
    if not is_of_profile or training.optimizer == task.recipe.get(optimizer, training.optimizer):
        return ""
    if (count := few_samples(data, FEW_IMAGES)) is None:
        return ""
    return (
        f"{resolved.profile} is for large sets: {training.optimizer} at {training.lr:g} with a batch of "
        f"{training.batch_size}; {count:,} training images are learnt better by --profile fast"
    )


def _of_few(count: int) -> str:
    return f"chosen: {count:,} training images"


# Chooses what a configuration leaves open of the images: size, crops, interpolation, normalisation
# -------------------------------------------------------------------------------------------------

_LEAST_SIDE = 32

Choices = dict[str, tuple[Any, str]]
"""Key of a setting -> value and source."""


def image_choices(config: RunConfig, task: str, device: str, why: str) -> Choices:
    """Return the unset values of the images: of the weights that it begins with, else of the task.

    Args:
        config: The configuration, with the name of the network.
        task: The task.
        device: Kind of the device: cuda, cpu, …
        why: Source of values that depend on the device.

    Raises:
        ConfigError: Images would be enlarged, the normalisation is for other channels, or there are no
            pretrained weights.
    """
    data, kind = config.data, TASKS[task].sample
    weights = _weights(config)
    own = weights.source if weights else ""
    small = _small_side(config, kind)
    if data.image_size is not None:
        size: Choices = {}
    elif weights is not None and weights.side is not None:
        size = {"image_size": (weights.side, own)}
    elif small is not None:
        size = {"image_size": (_side_for(small, MODELS[str(config.model.name)]), _of_small(small))}
    else:
        size = {"image_size": (TASKS[task].side.on(device), why)}
    side = size["image_size"][0] if size else int(data.image_size or 0)
    return (
        size
        | _views(config, kind, side, small)
        | _resampling(data, kind, weights, own)
        | _normalization(data, kind, weights, own)
    )


def _small_side(config: RunConfig, kind: SampleKind) -> int | None:
    """Return the side of small images that a network learns from random weights; None where it has no say."""
    data = config.data
    is_open = data.image_size is None or data.crop_scale is None
    takes_any = config.model.name in MODELS  # others are tried when they are built
    learns_classes = kind is SampleKind.CLASS and config.model.weights is None
    return small_side(data) if is_open and takes_any and learns_classes else None


def _side_for(small: int, model: ModelSpec) -> int:
    """Return the smallest side that a network takes and halves five times, of `small` pixels or more."""
    each = lcm(_LEAST_SIDE, model.side_multiple)
    return -(-max(small, model.smallest_side) // each) * each


def _of_small(side: int) -> str:
    return f"chosen: images of {side} px"


@dataclass(frozen=True, slots=True)
class WeightsImages:
    """The images that weights were trained on; see `Pretrained`."""

    source: str
    mean: Sequence[float]
    std: Sequence[float]
    side: int | None
    interpolation: Interpolation
    crop_pct: float


def _weights(config: RunConfig) -> WeightsImages | None:
    """Return the images that the weights were trained on, if they leave something open.

    Those of a run's file are the run's; those of any other file are taken to be of the network's published
    weights.
    """
    data, file = config.data, config.model.weights
    of_weights = (data.image_size, data.interpolation, data.crop_pct, data.mean, data.std)
    if file is None or None not in of_weights:
        return None
    if file != PRETRAINED and (found := _of_run(Path(file))) is not None:
        return found
    from mptui.models.zoo import pretrained, published

    weights = pretrained(config.model) if file == PRETRAINED else published(config.model)
    if weights is None:
        return None
    return WeightsImages(
        f"weights {weights.name}"
        if file == PRETRAINED
        else f"the network's published weights, {weights.name}",
        weights.mean,
        weights.std,
        weights.side,
        weights.interpolation,
        weights.crop_pct,
    )


def _of_run(file: Path) -> WeightsImages | None:
    """Return the images of a run whose checkpoint has the file; None if it is of no run."""
    if len(file.parents) < 3:
        return None
    run = file.parents[2]
    try:
        data = DataConfig.model_validate(tomli.loads((run / CONFIG).read_text())["data"])
    except (OSError, ValueError, KeyError):
        return None
    if data.mean is None or data.std is None or data.interpolation is None:
        return None
    crop = CROP_PCT if data.crop_pct is None else data.crop_pct
    return WeightsImages(
        f"the run {run.name}", data.mean, data.std, data.image_size, data.interpolation, crop
    )


SHORT_RUN = 320
"""Steps up to which a run does not learn its images by heart: crops cost accuracy there (docs/recipes.md)."""


def _views(config: RunConfig, kind: SampleKind, side: int, small: int | None) -> Choices:
    """Return the unset values of resizing, cropping and mirroring.

    Raises:
        ConfigError: Images would be resized to less than the network's input, or don't suit a transform.
    """
    data = config.data
    if data.resize is not None and data.resize < side:
        raise ConfigError(
            f"data.resize = {data.resize} is below data.image_size = {side}: all crops would be enlarged",
            hint=f"set data.resize to {side} or more, or data.image_size to {data.resize}",
        )
    source = "chosen: by data.image_size"
    choices: Choices = {} if data.resize is not None else {"resize": (default_resize(side), source)}
    names = suited_transforms(data.augment, kind)
    scale = default_crop_scale(kind, side) if "crop" in names else None
    has_crops = data.crop_scale is not None or tuple(data.crop_ratio) != CROP_RATIO  # somebody asks for them
    is_open = data.augment == "default" and not has_crops
    was_measured = small is not None or (kind is SampleKind.MASK and config.model.weights is None)
    if is_open and was_measured and (steps := _short_run(config)) is not None:
        uncropped = [name for name in names if name != "crop"]
        return choices | {"augment": (uncropped, f"chosen: {steps:,} steps")}
    if small is not None and scale is not None:
        scale, source = SMALL_CROPS, _of_small(small)
    if data.crop_scale is None and scale is not None:
        choices["crop_scale"] = (list(scale), source)
    return choices


def _short_run(config: RunConfig) -> int | None:
    """Return the number of steps of a run of `SHORT_RUN` steps or fewer; None: it is longer, or not known."""
    training = config.training
    batch = training.batch_size * training.accumulate
    count = few_samples(config.data, SHORT_RUN // training.epochs * batch)
    return None if count is None or training.time is not None else training.epochs * ceil(count / batch)


def suited_transforms(augment: Augment, kind: SampleKind) -> Sequence[str]:
    """Return the names of the transforms that `data.augment` means for samples of a kind.

    Raises:
        ConfigError: One of them does not suit such samples.
    """
    names = transforms_of(augment, kind)
    if unfit := [name for name in names if kind not in find_transform(name).kinds]:
        suited = ", ".join(name for name, spec in TRANSFORMS.items() if kind in spec.kinds)
        raise ConfigError(
            f"data.augment: {unfit[0]} does not suit {_IMAGES_OF[kind]}",
            hint=f"name any of {suited}, or leave data.augment out",
        )
    return names


def _resampling(data: DataConfig, kind: SampleKind, weights: WeightsImages | None, own: str) -> Choices:
    """Return the unset ones of `interpolation` and of `crop_pct`, which only images with classes have."""
    source = own or "default"
    choices: Choices = {}
    if data.interpolation is None:
        choices["interpolation"] = (weights.interpolation if weights else "bilinear", source)
    if data.crop_pct is None and kind is SampleKind.CLASS:
        choices["crop_pct"] = (weights.crop_pct if weights else CROP_PCT, source)
    return choices


def _normalization(data: DataConfig, kind: SampleKind, weights: WeightsImages | None, own: str) -> Choices:
    """Return the unset ones of `mean` and `std`.

    Raises:
        ConfigError: They are not for as many channels as images have, or no network learns such images.
    """
    if data.bands == "all":
        if kind is SampleKind.IMAGE:
            raise ConfigError(
                'data.bands = "all": networks that generate images make 8-bit RGB',
                hint="leave data.bands out",
            )
        return {}  # the training images are measured
    usual = default_normalization(kind)
    source = own or ("chosen: pixels in -1..1" if usual == HALF else "chosen: of ImageNet")
    given = {"mean": data.mean, "std": data.std}
    known = {"mean": (weights or usual).mean, "std": (weights or usual).std}
    for key, values in given.items():
        if values is not None and len(values) != len(usual.mean):
            raise ConfigError(
                f"data.{key} = {values}: images have {len(usual.mean)} channels",
                hint=f"give data.{key} one value for each channel, or leave it out",
            )
    return {key: (list(known[key]), source) for key, values in given.items() if values is None}


# Chooses the batch for a set of few images, and its rate, where nobody has set either
# -----------------------------------------------------------------------------------

ENOUGH_STEPS = 16
"""About how many steps of an epoch suffice: with fewer, the rate decays before much is learnt; with more, an
epoch takes longer (docs/recipes.md)."""
SMALLEST_BATCH = 8
"""BatchNorm's statistics of fewer samples are noise (Wu & He 2018, figure 1)."""


def batch_choices(config: RunConfig, sources: Mapping[str, str], task: str) -> Choices:
    """Return batch and rate for few images with classes, by `table.key`; empty for other data.

    The rate keeps its proportion to the batch; of optimizers that divide by the size of gradients, to its
    root (Krizhevsky 2014).
    """
    usual = config.training.batch_size
    if task != CLASSIFICATION or not all(sources[key].startswith("default") for key in RECIPE_OF_BATCH):
        return {}
    count = few_samples(config.data, ENOUGH_STEPS * usual)
    if count is None:
        return {}
    batch = max(SMALLEST_BATCH, 2 ** round(log2(max(1.0, count / ENOUGH_STEPS))))
    if batch >= usual:
        return {}
    source = _of_few(count)
    scaling = "linear" if config.training.optimizer == "sgd" else "sqrt"
    chosen = dict(zip(CHOSEN_BATCH, (batch, usual, scaling), strict=True))
    return {key: (value, source) for key, value in chosen.items()}


# Chooses the rate of a narrow U-Net, where nobody has set it
# -----------------------------------------------------------

_USUAL_WIDTH, _NARROWEST = 64, 16
"""The width for which the default rate is, and that from which on narrower ones get no higher rate."""


def rate_choices(config: RunConfig, sources: Mapping[str, str], task: str) -> Choices:
    """Return the rate of a U-Net narrower than usual, by `table.key`; empty for other networks.

    An update of Adam changes each weight by as much, whatever the width, and the output of a layer by the
    sum over its inputs: so the rate is in proportion to 1/width (Yang et al. 2022, arXiv:2203.03466).

    Args:
        config: The configuration, with the name of the network.
        sources: Where each value came from.
        task: The task.
    """
    model, rate = config.model, "training.lr"
    is_open = sources[rate] == f"default [{task}.training]"  # with the task's own optimizer, then
    is_narrow = model.name == "unet" and model.encoder is None and model.width < _USUAL_WIDTH
    if task != SEGMENTATION or not (is_open and is_narrow):
        return {}
    factor = _USUAL_WIDTH / max(_NARROWEST, model.width)
    return {rate: (config.training.lr * factor, f"chosen: a U-Net of width {model.width}")}


# Checks the plan of a run in several processes (ranks); only `run` and `resume` have more than one
# -------------------------------------------------------------------------------------------------


def check_single_process(environ: Mapping[str, str]) -> None:
    """Check that a launcher started a single process; all ranks fail otherwise.

    Raises:
        ConfigError: torchrun or srun started more than one process.
    """
    for name, size, rank in (("torchrun", *_torchrun(environ)), ("srun", *_srun(environ))):
        if size > 1 and rank is not None:
            raise ConfigError(
                f"{name} started {size} processes (this is rank {rank}), and each would do all of the work",
                hint="start a single process; several train together with: mptui run, mptui resume",
            )


def device_of(place: RankPlace, device: Device, devices: Sequence[Device]) -> Device:
    """Return the device of a rank: of the kind of `device`, that of its number on the node.

    A launcher may let each rank see devices of its own only (srun --gpus-per-task): with fewer than ranks on
    the node, they are counted anew. Whether two ranks have the same one shows as they join.
    """
    if device.kind == "cpu":
        return device
    own = [each for each in devices if each.kind == device.kind and each.usable]
    return own[place.local_rank % len(own)]


def check_batch(ranks: int, training: TrainingConfig) -> None:
    """Check that each rank has a sample of each batch.

    Raises:
        ConfigError: There are fewer samples than ranks.
    """
    if training.batch_size < ranks:
        raise ConfigError(
            f"training.batch_size = {training.batch_size} is shared by {ranks} processes",
            hint=f"set --batch-size to {ranks} or more: it is that of all processes together",
        )


def check_sync_batch_norm(training: TrainingConfig, device: Device) -> None:
    """Check that torch can synchronize BatchNorm on this device, if that is asked for.

    Raises:
        ConfigError: It can't.
    """
    if training.sync_batch_norm and device.kind not in {"cuda", "xpu"}:
        raise ConfigError(
            f"training.sync_batch_norm: torch can't synchronize BatchNorm on {device.name} ({device.kind})",
            hint="--set training.sync_batch_norm=false, or a network without BatchNorm "
            "(unet: --set model.norm=group)",
        )


def _torchrun(environ: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the number of processes and the rank of this one."""
    return number_of(environ.get("WORLD_SIZE"), 1), environ.get("RANK") or environ.get("LOCAL_RANK")


def _srun(environ: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the number of tasks of the job step and the rank of this one.

    A batch script is one process with rank 0 for any number of tasks of its job (SLURM_NTASKS); only steps
    started by srun have SLURM_STEP_NUM_TASKS.
    """
    in_batch_script = environ.get("ENVIRONMENT") == "BATCH"
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or (None if in_batch_script else environ.get("SLURM_NTASKS"))
    return number_of(tasks, 1), environ.get("SLURM_PROCID")


# Describes the effective learning rate and batch of a planned run. Imports no torch
# ----------------------------------------------------------------------------------


def effective_words(training: TrainingConfig) -> str:
    """Describe the effective rate and batch: after scaling, warm-up and schedule."""
    rate = f"lr {scaled_lr(training):.3g} for a batch of {_batch(training)}"
    return f"{rate}{_scaled(training)}, {_over(training)}"


def rate_notes(training: TrainingConfig) -> tuple[str, ...]:
    """Return a line for each difference between the rate of a run and its settings."""
    notes = []
    if scaled_lr(training) != training.lr:
        notes.append(
            f"Effective learning rate: {scaled_lr(training):.3g} for a batch of {_batch(training)}"
            f"{_scaled(training)}"
        )
    if training.warmup_epochs > warmup_epochs(training):
        notes.append(
            f"Warm-up: {warmup_epochs(training):g} epochs, not {training.warmup_epochs:g}: at most "
            f"{training.warmup_max_fraction:.0%} of the run (training.warmup_max_fraction)"
        )
    elif training.warmup_epochs and (training.max_steps is not None or training.time is not None):
        notes.append(
            f"Warm-up: {training.warmup_epochs:g} epochs, or {training.warmup_max_fraction:.0%} of the steps "
            "if that is less (training.warmup_max_fraction)"
        )
    if by_layer := [*_by_layer(training)]:
        notes.append(f"Learning rate by layer: {', '.join(by_layer)}")
    if OPTIMIZERS[training.optimizer].averages and training.schedule != "constant":
        notes.append(
            f'Schedule: {training.optimizer} is meant for training.schedule = "constant" with warm-up, not '
            f'"{training.schedule}": it averages the weights in place of decaying the rate'
        )
    return tuple(notes)


def _by_layer(training: TrainingConfig) -> Iterator[str]:
    if training.layer_decay != 1.0:
        yield f"x {training.layer_decay:g} from each layer to the one before it (training.layer_decay)"
    if training.head_lr_scale != 1.0:
        yield f"x {training.head_lr_scale:g} for the head (training.head_lr_scale)"


def _batch(training: TrainingConfig) -> int:
    return training.batch_size * training.accumulate


def _scaled(training: TrainingConfig) -> str:
    if scaled_lr(training) == training.lr:
        return ""
    return f" ({training.lr:g} for {training.lr_batch_size}, scaled {training.lr_scaling})"


def _over(training: TrainingConfig) -> str:
    warmup = warmup_epochs(training)
    rise = f"after {warmup:g} epoch{'s' if warmup != 1 else ''} of warm-up, " if warmup else ""
    return f"{rise}{training.schedule} schedule"


# The person's own code that a run names, and whether it is trusted
# -----------------------------------------------------------------

_KEYS = ("model.name", "model.task", "data.name")


def own_names(config: RunConfig) -> list[tuple[str, str]]:
    """Return the settings that name the person's own code, each with a name; of a list, with each of them."""
    named = [(key, value_of(config, key)) for key in _KEYS]
    if isinstance(config.data.augment, list):
        named += [("data.augment", name) for name in config.data.augment]
    return [(key, name) for key, name in named if is_own(name)]


def with_code_folder(config: RunConfig) -> RunConfig:
    """Return a configuration that says where the person's own code is, if it names some."""
    if not own_names(config):
        return config
    return with_values(config, {"code.folder": absolute(config.code.folder or ".")})


def allow_own_code(config: RunConfig, *, trusted: bool) -> None:
    """Let this process import the person's own code that a configuration names.

    Raises:
        ConfigError: It isn't trusted; nothing of it has run.
    """
    names = own_names(config)
    folder = absolute(config.code.folder or ".")
    foreign = [(key, name) for key, name in names if not is_given(name)]
    if foreign and not trusted:
        lines = (f"{key} = {name}: your own code runs only with --trust-code" for key, name in foreign)
        raise ConfigError("\n".join(lines), hint=f"read the code in {folder}, then add --trust-code")
    if names:
        allow(folder)


def import_own_code(config: RunConfig) -> None:
    """Import the person's own code, so that its faults are found early.

    Raises:
        ConfigError: A module, or a name in it, is missing.
        Exception: Whatever the code raises.
    """
    for _, name in own_names(config):
        load(name)
