"""Model, data, loaders of a plan."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mptui import text as fmt
from mptui.config.keys import value_of, with_values
from mptui.config.schema import DataConfig, ModelConfig, RunConfig
from mptui.data.cache_policy import choose_cache, memory_room, sides_of
from mptui.data.dataset import in_learned_order
from mptui.data.learned import LearnedData
from mptui.data.loader import Loader, LoaderOptions
from mptui.data.noise import Noising
from mptui.data.open import check_data
from mptui.data.sampler import EpochOrder, Labels, Share, fewest_at_once
from mptui.data.transforms import Geometry, Normalization, Transforms, default_normalization
from mptui.data.types import RGB, Dataset, LabelledSplit, PixelFormat, Problem, SampleFormat, Split
from mptui.data.view_transforms import made
from mptui.engine.checkpoint.snapshots import check_state
from mptui.engine.evaluate import in_eval_mode
from mptui.engine.job import Job, total_steps
from mptui.engine.mailbox import Mailbox
from mptui.engine.micro_batches import is_too_few_for_norm
from mptui.engine.optim.optimizers import frozen_in, frozen_parameters, head_parameters
from mptui.engine.progress import limit_memory, prepare_torch
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.engine.ranks.replica import in_format, placed
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.events import PhaseChanged, RunStarted, Warned
from mptui.io.files import expanded
from mptui.models import zoo
from mptui.models.layers import blocks_of, has_batch_norm, layers_named
from mptui.models.vae import latent_shape
from mptui.models.weights import check_file
from mptui.models.zoo import build, input_shape, parameter_count
from mptui.registry.models import PRETRAINED
from mptui.registry.names import SampleKind
from mptui.registry.own_code import allowed, fault_of, is_own
from mptui.registry.tasks import DIFFUSION, TASKS
from mptui.registry.transforms import find_transform
from mptui.runs.planning.find_data import Emit, PacedProgress, find_data
from mptui.runs.planning.plan import Plan, import_own_code, suited_transforms, within_budget
from mptui.runs.store.choices import BY_BUDGET
from mptui.runs.store.files import learned_by_weights
from mptui.tasks.base import Task
from mptui.tasks.build_task import build_task
from mptui.text import clean, clean_name, some

# Builds a job from a plan: scans the data, builds the model on the device and the loaders
# ----------------------------------------------------------------------------------------

OnBad = Callable[[Problem], None]
Decide = Callable[[Plan, torch.nn.Module, Dataset], Plan]


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A job and its data; in the plan of its loaders, all `auto` settings are chosen."""

    job: Job
    dataset: Dataset
    loaders: "LoaderMaker"


def check_inputs(plan: Plan) -> None:
    """Check the inputs of a new run before its directory is created; imports own code, reads no files.

    Raises:
        ConfigError: The network, weights file or set doesn't exist, or they don't match.
        DataError: The folder is missing, has an unknown layout, or is for another task.
    """
    model, data = plan.config.model, plan.config.data
    import_own_code(plan.config)
    check_data(data, model.reads(plan.task))
    zoo.check(model, plan.task, int(data.image_size or 0))
    if model.weights not in {None, PRETRAINED}:
        check_file(Path(str(model.weights)))


def prepare(
    plan: Plan,
    *,
    mailbox: Mailbox,
    emit: Emit = lambda event: None,
    on_bad: OnBad = lambda problem: None,
    force_compile: bool = False,
    decide: Decide = lambda plan, model, dataset: plan,
    goes_on: bool = False,
    learned: LearnedData | None = None,
    read_before: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> PreparedRun:
    """Prepare everything that the trainer needs.

    Args:
        plan: The plan of the run.
        mailbox: Checked for a stop in every phase.
        emit: Receives progress events.
        on_bad: Called for each unusable sample, also during training.
        force_compile: Compile even if the run is too short to repay it.
        decide: Measures the `auto` settings; without it, the table of devices decides.
        goes_on: Whether weights are restored from a checkpoint, so that `model.weights` is not read.
        learned: What the network has learned from already; its classes keep their numbers. None: nothing.
        read_before: How the run has read its data so far (`reading_document`); None: it is new, or unknown.
        ranks: The processes that train together, all of which call this.

    Raises:
        ConfigError: The model does not exist, or not at this image size or for this task.
        OwnCodeError: The person's network has other outputs than the task needs, or can't be saved.
        DataError: The data is missing, empty, has too many unusable files, or is other than what the network
            has learned from.
        Stopped: A stop was requested.
    """
    config = plan.config
    device = torch.device(plan.device.torch_name)
    prepare_torch(config, device)
    limit_memory(config.memory.budget_gib, device)
    side = int(config.data.image_size or 0)
    weights = None if goes_on else _weights_file(config.model, emit)
    emit(PhaseChanged(phase="scanning", detail=str(config.data.path or config.data.name)))
    if goes_on:
        _check_not_moved(config.data)
    dataset, plan = find_data(plan, emit, mailbox, ranks, before=read_before)
    if learned is not None:
        dataset = in_learned_order(dataset, learned)
        LearnedData.of(dataset, plan.task).check(learned)
    emit(PhaseChanged(phase="preparing", found=_data_found(dataset)))
    bands = dataset.pixels.bands
    model = build(config.model, num_classes=len(dataset.classes), task=plan.task, side=side, bands=bands)
    check_outputs(plan, model, len(dataset.classes))
    check_state(model)
    if weights is not None:
        for message in _load_weights(model, weights, config, dataset):
            emit(Warned(code="weights", message=message))
    mailbox.poll()
    size = f"{config.model.name}, {fmt.short(parameter_count(model))} parameters"
    emit(PhaseChanged(phase="preparing", found=size))
    _check_layers(model, config)  # report faults before the first step
    are_random = config.model.weights is None and not goes_on
    if config.training.freeze and are_random:
        message = "frozen layers have random weights; name trained ones with model.weights"
        emit(Warned(code="freeze", message=message))
    cached = _with_cache(plan, dataset, emit, ranks)
    plan = _decided(cached, len(dataset.classes), ranks.world_size, lambda plan: decide(plan, model, dataset))
    precision = plan.precision
    emit(PhaseChanged(phase="preparing", found=f"precision: {precision.used}, {precision.reason}"))
    if config.training.sync_batch_norm and not ranks.is_alone:  # rank 0 has measured without the others
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    loaders = LoaderMaker(plan, dataset, emit, on_bad, mailbox.check_stop, ranks)
    job = build_job(plan, loaders, placed(model, config, ranks, device), force_compile=force_compile)
    return PreparedRun(job, dataset, loaders)


def _data_found(dataset: Dataset) -> str:
    """Describe the size of a set: `1,000 + 200 images, 10 classes`."""
    images = f"{len(dataset.train):,} + {len(dataset.val):,} images"
    has_classes = dataset.kind is not SampleKind.IMAGE
    return f"{images}, {len(dataset.classes):,} classes" if has_classes else images


def _check_not_moved(data: DataConfig) -> None:
    """Check that the data of a run that goes on is where it was.

    Raises:
        DataError: It isn't.
    """
    if data.path is not None and not os.path.lexists(expanded(data.path)):
        raise DataError(
            f"no such folder: {clean_name(data.path)}",
            hint="say where the data of the run is now: mptui resume RUN --data DIR",
        )


def _decided(asked: Plan, classes: int, ranks: int, decide: Callable[[Plan], Plan]) -> Plan:
    """Return the plan with its `auto` settings decided, within the limit on memory in all trials and then."""
    widest = "fp32" if asked.config.precision.mode == "auto" else asked.precision.used
    decided = decide(within_budget(asked, precision=widest, classes=classes, ranks=ranks))
    plan = replace(decided, resolved=asked.resolved)
    return within_budget(plan, precision=plan.precision.used, classes=classes, ranks=ranks)


def _weights_file(model: ModelConfig, emit: Emit) -> Path | None:
    if model.weights == PRETRAINED and not (found := zoo.pretrained(model)).file.cached:
        emit(PhaseChanged(phase="preparing", detail=f"downloading {found.name}"))
    return zoo.weights_file(model)


def _load_weights(model: torch.nn.Module, path: Path, config: RunConfig, dataset: Dataset) -> list[str]:
    """Load the weights that a run begins with; return warnings, also of a head for other classes."""
    random = [parameter.detach().clone() for parameter in head_parameters(model)]
    told = zoo.load_weights_of(model, config.model, path, int(config.data.image_size or 0))
    keeps_head = not all(map(torch.equal, head_parameters(model), random))
    learned = learned_by_weights(path)
    known = None if learned is None else tuple(learned.classes)
    predicts_classes = dataset.kind is not SampleKind.IMAGE and not config.model.class_conditional
    are_other_classes = predicts_classes and known != dataset.classes
    if keeps_head and are_other_classes:
        whose = "whose names are not known" if known is None else f"which were others: {some(known)}"
        told.append(f"{clean(path.name)}: its head for {len(dataset.classes)} classes is kept, {whose}")
    return told


def _with_cache(plan: Plan, dataset: Dataset, emit: Emit, ranks: Ranks) -> Plan:
    """Return the plan with `data.cache` chosen, as saved in run.toml."""
    config = plan.config
    choice = choose_cache(
        config.data.cache,
        dataset,
        halves=(build_transforms(plan, train=True), build_transforms(plan, train=False)),
        device=torch.device(plan.device.torch_name),
        epochs=config.training.epochs,
        latent_bytes=_latent_bytes(config),
        processes=ranks.per_node,
        least=lambda size: min(ranks.gather(size)),
    )
    if choice.warning is not None:
        emit(Warned(code="cache", message=choice.warning))
    if dataset.draws and choice.mode != "off":
        message = (
            f"data.cache = {choice.mode}: samples of {dataset.name} draw random numbers, "
            "and each keeps those of its first reading in all epochs (other ones in each: data.cache = off)"
        )
        emit(Warned(code="cache", message=message))
    if config.model.vae is not None and choice.mode != "device":
        message = f"latents are not cached, so that the VAE encodes each batch again: {choice.reason}"
        emit(Warned(code="cache", message=message))
    if config.data.cache == choice.mode:
        return plan
    chosen = with_values(config, {"data.cache": choice.mode})
    sources = {**plan.resolved.sources, "data.cache": f"chosen: {choice.reason}"}
    return replace(
        plan,
        resolved=replace(plan.resolved, config=chosen, sources=sources),
        notes=(*plan.notes, f"Cache: {choice.mode} ({choice.reason})"),
    )


def _latent_bytes(config: RunConfig) -> int:
    """Return the bytes of the latents of an image; 0 without a VAE."""
    vae = config.model.vae
    return 4 * math.prod(latent_shape(vae, int(config.data.image_size or 0))) if vae else 0


def build_job(
    plan: Plan,
    loaders: "LoaderMaker",
    model: torch.nn.Module,
    *,
    force_compile: bool,
    train: Loader | None = None,
    val: Loader | None = None,
) -> Job:
    """Return the job of `plan` for a model that is on its device.

    Args:
        plan: The plan of the job.
        loaders: Builds the loaders that are not given.
        model: The model.
        force_compile: Compile even if the run is too short to repay it.
        train: An existing loader of the training set.
        val: An existing loader of the validation set.
    """
    dataset = loaders.dataset
    speed = {"speed.channels_last": plan.channels_last, "speed.fused": plan.fused}
    config = with_values(plan.config, speed)
    _check_layers(model, config)  # report faults before the switch
    task = build_task(
        plan.task, dataset.classes, config.training, config.model.task, counts=dataset.class_counts
    )
    check_single_samples(model, task, config, count=len(dataset.train), processes=loaders.ranks.world_size)
    return Job(
        config=config,
        model=in_format(model, channels_last=plan.channels_last),
        task=task,
        num_classes=len(dataset.classes),
        device=torch.device(plan.device.torch_name),
        precision=plan.precision.used,
        train_loader=train or loaders.make(dataset.train, train=True),
        val_loader=val or loaders.make(dataset.val, train=False),
        fallbacks=("bf16", "fp32") if plan.device.native.get("bf16") == "native" else ("fp32",),
        force_compile=force_compile,
        device_name=plan.device.name,
        ranks=loaders.ranks,
        val_split=dataset.val,
        learned=LearnedData.of(dataset, plan.task),
    )


def _normalization(data: DataConfig) -> Normalization | None:
    if data.mean is None or data.std is None:
        return None
    return Normalization(tuple(data.mean), tuple(data.std))


def _check_layers(model: torch.nn.Module, config: RunConfig) -> None:
    """Check that the network has the layers that the configuration names.

    Raises:
        ConfigError: It has not, no weights are left to train, or no blocks can be checkpointed.
    """
    if config.memory.activation_checkpointing:
        blocks_of(model)
    layers_named(model, config.precision.fp32_layers, key="precision.fp32_layers")
    frozen_parameters(model, frozen_in(config.training, epoch=0))


def build_transforms(plan: Plan, *, train: bool) -> Transforms:
    """Return what becomes of the samples of the training or validation set of `plan`.

    Raises:
        ConfigError: A transform does not suit its images.
    """
    data, kind = plan.config.data, TASKS[plan.task].sample
    side, has_targets = int(data.image_size or 0), kind is not SampleKind.IMAGE
    names = suited_transforms(data.augment, kind) if train else ()
    scale = None if data.crop_scale is None else (data.crop_scale[0], data.crop_scale[1])
    geometry = Geometry.for_training(
        kind,
        side,
        data.resize,
        names=names,
        crop_scale=scale,
        crop_ratio=(data.crop_ratio[0], data.crop_ratio[1]),
        crop_pct=data.crop_pct,
        interpolation=data.interpolation,
    )
    return Transforms(
        geometry,
        _normalization(data) or default_normalization(kind),
        names=tuple(names),
        mixup_alpha=data.mixup_alpha if train and has_targets else 0.0,
        cutmix_alpha=data.cutmix_alpha if train and has_targets else 0.0,
        channels_last=plan.channels_last,
    )


def _check_rgb(names: Iterable[str], pixels: PixelFormat) -> None:
    """Check that transforms suit images of another format than 8-bit RGB.

    Raises:
        ConfigError: One of them does not.
    """
    if unfit := [name for name in names if find_transform(name).rgb]:
        raise ConfigError(
            f"data.augment: {unfit[0]} changes 8-bit RGB alone, these images have {pixels}",
            hint=f"leave {unfit[0]} out",
        )


@dataclass(frozen=True, slots=True)
class LoaderMaker:
    """Builds the two loaders of a job.

    `on_bad` is called for each unusable sample; `check_stop` is called while waiting for data, and raises if
    the run is to stop.
    """

    plan: Plan
    dataset: Dataset
    emit: Emit
    on_bad: OnBad
    check_stop: Callable[[], None]
    ranks: Ranks = ALONE

    def of(self, plan: Plan) -> "LoaderMaker":
        """Return a maker for another plan."""
        return replace(self, plan=plan)

    def make(self, split: Split, *, train: bool, labelled: bool = True) -> Loader:
        """Build the loader of the training or validation set, or of images without labels."""
        config, training = self.plan.config, self.plan.config.training
        kind, pixels = TASKS[self.plan.task].sample, self.dataset.pixels
        transforms = build_transforms(self.plan, train=train)
        if pixels != RGB and isinstance(config.data.augment, list):
            _check_rgb(transforms.names, pixels)
        for name in transforms.of_views:  # its fault is found before a worker finds it
            made(name, allowed())
        order = EpochOrder(
            len(split),
            # memory for more samples than the set has may not be there
            batch_size=training.batch_size if train else min(training.batch_size, max(1, len(split))),
            train=train,
            seed=training.seed if train else config.split_seed,
            labels_N=_labels(split) if train and config.data.sampler == "balanced" else None,
            share=Share(self.ranks.rank, self.ranks.world_size),
        )
        return Loader(
            split,
            SampleFormat(kind, len(self.dataset.classes), pixels, labelled),
            order,
            transforms,
            device=torch.device(self.plan.device.torch_name),
            noising=self._noising(),
            options=self._options(transforms, train=train),
        )

    def _options(self, transforms: Transforms, *, train: bool) -> LoaderOptions:
        data = self.plan.config.data
        cache = data.cache if data.cache != "auto" else "off"
        if cache == "device" and transforms.of_views:  # chosen before a switch has named them
            cache = "ram"
            named = ", ".join(transforms.of_views)
            message = (
                f"data.cache = device: views would be cut without {named}; "
                "training images are cached in memory"
            )
            self.emit(Warned(code="cache", message=message))
        return LoaderOptions(
            workers=self.plan.workers,
            prefetch=data.prefetch,
            cache=cache,
            sizes=sides_of(self.dataset, 0 if train else 1),
            cache_room=memory_room(processes=self.ranks.per_node) if cache == "ram" else None,
            on_cache_full=self._cache_full,
            bad_budget=data.bad_sample_budget,
            on_bad=self._bad_sample,
            on_progress=self._progress(),
            check_stop=self.check_stop,
        )

    def _noising(self) -> Noising | None:
        if self.plan.task != DIFFUSION:
            return None
        device = torch.device(self.plan.device.torch_name)
        return Noising.of(self.plan.config, len(self.dataset.classes), device)

    def _cache_full(self, kept: int, count: int) -> None:
        message = f"the memory for data.cache = ram is full: {kept:,} of {count:,} samples are cached"
        self.emit(Warned(code="cache", message=message))

    def _progress(self) -> Callable[[int, int], None]:
        report = PacedProgress(self.emit, "preparing")

        def progress(done: int, total: int) -> None:
            self.check_stop()
            report(done, total)

        return progress

    def _bad_sample(self, problem: Problem) -> None:
        self.on_bad(problem)
        self.emit(Warned(code="bad_sample", message=f"left out {problem.path}: {problem.reason}"))


def _labels(split: Split) -> Labels:
    if not isinstance(split, LabelledSplit):
        raise ConfigError(
            'data.sampler = "balanced": this data set does not list the classes of its samples',
            hint="set training.class_weights instead, to a weight for each class, in their order",
        )
    return split.sample_labels


# Checks before a network is trained what it returns, and that it can be trained on so few samples at a time
# ----------------------------------------------------------------------------------------------------------
# With outputs of another shape, a loss may be wrong without an error, or end a CUDA device.

_SAMPLES = 2


@torch.no_grad()
def check_outputs(plan: Plan, model: torch.nn.Module, num_classes: int) -> None:
    """Check the outputs of the network of `plan`, if it is the person's own; lazy modules get their shapes.

    Its parts stay in the modes that they are in.

    The outputs for a loss of the person's own may have any shape.

    Args:
        plan: The plan of the run.
        model: Its network, on the host.
        num_classes: Number of classes.

    Raises:
        OwnCodeError: They are no tensor, or have another shape than the task needs.
    """
    name, learns, side = (
        str(plan.config.model.name),
        plan.config.model.task,
        int(plan.config.data.image_size or 0),
    )
    if not is_own(name):
        return
    classes, counts = [str(number) for number in range(num_classes)], [1] * num_classes
    task = build_task(plan.task, classes, plan.config.training, counts=counts)
    batch = task.dummy_batch(torch.zeros(_SAMPLES, plan.config.data.channels, side, side))
    try:
        with torch.random.fork_rng(devices=[]), in_eval_mode(model):
            outputs = model(*batch.inputs)
    except Exception as error:
        if fault_of(error) is not None:
            raise
        what = f"{name} failed on images {list(batch.images_BCHW.shape)}: {type(error).__name__}: {error}"
        raise OwnCodeError(what, hint="correct your network; --debug shows the whole traceback") from error
    needed = {
        SampleKind.CLASS: [_SAMPLES, num_classes],
        SampleKind.MASK: [_SAMPLES, num_classes, side, side],
        SampleKind.IMAGE: [_SAMPLES, 3, side, side],
    }[TASKS[plan.task].sample]
    if not isinstance(outputs, torch.Tensor):
        raise OwnCodeError(f"{name} returned {type(outputs).__name__}", hint="return one tensor from forward")
    if list(outputs.shape) != needed and not is_own(learns):
        raise OwnCodeError(
            f"{name} returned {list(outputs.shape)} for {_SAMPLES} images, but {plan.task} needs {needed}",
            hint="change its last layer, or name a loss of your own with --task",
        )


def check_single_samples(
    model: torch.nn.Module, task: Task, config: RunConfig, *, count: int, processes: int
) -> None:
    """Check that BatchNorm has more than one value of a channel, where a process trains on a single sample.

    Only a trial tells: it depends on the size of the network's feature maps, which may be 1 x 1.

    Args:
        model: The network, on its device; its buffers stay.
        task: Its task.
        config: The configuration of the run.
        count: Samples of an epoch.
        processes: The processes that share each batch.

    Raises:
        ConfigError: BatchNorm has too few.
    """
    training, micro_batch = config.training, config.memory.micro_batch
    limit = micro_batch if isinstance(micro_batch, int) else None
    synchronized = training.sync_batch_norm and processes > 1
    alone = fewest_at_once(count, training.batch_size, processes, limit) == 1
    if not alone or synchronized:
        return
    if not has_batch_norm(model) or _trains_on_one(model, task, config):
        return
    if training.batch_size < 2 * processes:
        shared = f" over {processes} processes" if processes > 1 else ""
        cause = f"training.batch_size = {training.batch_size}{shared}"
        remedy = f"set --batch-size to {2 * processes} or more"
    elif count == 1:
        cause, remedy = "a training set of one sample", "add samples"
    else:
        cause, remedy = f"memory.micro_batch = {limit}", "set memory.micro_batch to 2 or more"
    raise ConfigError(
        f"{cause}: BatchNorm can't be trained on a single sample with feature maps of 1 x 1",
        hint=f"{remedy}; or a larger data.image_size, or a network without BatchNorm "
        "(unet: --set model.norm=group)",
    )


@torch.no_grad()
def _trains_on_one(model: torch.nn.Module, task: Task, config: RunConfig) -> bool:
    """Whether BatchNorm computes in training mode with one sample."""
    device = next(model.parameters()).device
    shape = input_shape(config.model, config.data.channels, int(config.data.image_size or 0))
    batch = task.dummy_batch(torch.zeros(1, *shape, device=device))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            model(*batch.inputs)
    except ValueError as error:
        if not is_too_few_for_norm(error):
            raise
        return False
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return True


# The event of a run that is ready to train: all that a screen says of it
# -----------------------------------------------------------------------


def run_started(
    plan: Plan, run: Path, prepared: PreparedRun, trainer: Trainer, *, resumed_from: int | None
) -> RunStarted:
    """Return the event of a run that is ready."""
    config, dataset, job = plan.config, prepared.dataset, prepared.job
    return RunStarted(
        step=trainer.state.step,
        run=run.name,
        directory=str(run),
        profile=plan.resolved.profile,
        changed=list(plan.resolved.changed),
        task=plan.task,
        primary=job.task.primary,
        model=str(config.model.name),
        parameters=parameter_count(job.model),
        dataset=clean(dataset.name),
        train_samples=len(dataset.train),
        val_samples=len(dataset.val),
        classes=[clean(name) for name in dataset.classes],
        device=plan.device.torch_name,
        device_name=plan.device.name,
        ranks=trainer.context.ranks.world_size,
        nodes=trainer.context.ranks.nodes,
        precision_requested=plan.precision.requested,
        precision=plan.precision.used,
        precision_reason=plan.precision.reason,
        tf32=config.precision.tf32 and plan.device.native.get("tf32") == "native",
        channels_last=plan.channels_last,
        compile_mode=config.speed.compile,
        image_size=int(config.data.image_size or 0),
        batch_size=config.training.batch_size,
        accumulate=config.training.accumulate,
        epochs=trainer.context.job.config.training.epochs,
        steps_per_epoch=trainer.context.parts.steps_per_epoch,
        val_batches=job.val_loader.batches,
        total_steps=total_steps(job, trainer.state.cursor, trainer.state.step),
        planned_lr=trainer.context.parts.planned_lr(trainer.state.step),
        resumed_from_step=resumed_from,
        price_per_hour=config.hardware.price_per_hour,
        notes=[*plan.notes, *_frozen_note(job), *_budget_note(plan)],
    )


def _budget_note(plan: Plan) -> list[str]:
    """Describe what a limit on memory decided."""
    chosen = [key for key, source in plan.resolved.sources.items() if source == BY_BUDGET]
    if not chosen:
        return []
    words = ", ".join(f"{key} = {value_of(plan.config, key)}" for key in chosen)
    return [f"Memory: {words} keeps to {plan.config.memory.budget_gib:g} GiB"]


def _frozen_note(job: Job) -> list[str]:
    """Describe what is frozen as the run begins."""
    asked = job.config.training.freeze
    if not asked:
        return []
    what = "the backbone" if not isinstance(asked, list) else ", ".join(asked)
    time = f" until the end of epoch {asked}" if isinstance(asked, int) else ""
    trained, all_of_it = parameter_count(job.model, trained=True), parameter_count(job.model)
    return [f"Frozen: {what}{time}; {trained:,} of {all_of_it:,} parameters are trained"]
