"""From a plan to a job: the data scanned, the model on the device, the loaders ready."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mptui.config.merge import resolve
from mptui.config.switch import switched
from mptui.data.checkers import ScanCancelledError
from mptui.data.loader import Loader
from mptui.data.open import open_dataset
from mptui.data.resident import cache_fits
from mptui.data.types import Dataset, Problem, Split
from mptui.engine.control import Mailbox, Stopped
from mptui.engine.parts import Job, Switch
from mptui.engine.setup import prepare_torch, set_switches
from mptui.events import Event, PhaseChanged, Progress, Warned
from mptui.hardware.advice import choose_precision
from mptui.models.weights import load_weights
from mptui.models.zoo import build
from mptui.runs.plan import Plan
from mptui.tasks.registry import build_task

Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job, and the data it was made from."""

    job: Job
    dataset: Dataset


def prepare(plan: Plan, *, emit: Callable[[Event], None], mailbox: Mailbox, force_compile: bool) -> Prepared:
    """Make everything ready that the trainer needs.

    Raises:
        ConfigError: The model does not exist, or not at this image size or for this task.
        DataError: The data is missing, empty, or too much of it is broken.
        Stopped: It was asked to end.
    """
    config = plan.config
    device = torch.device(plan.device.torch_name)
    prepare_torch(config, device)
    side = int(config.data.image_size or 0)
    emit(PhaseChanged(phase="scanning", detail=str(config.data.path or config.data.name)))
    try:
        dataset = _scanned(plan, side, emit, mailbox)
    except ScanCancelledError:
        raise Stopped(mailbox.stop_signal) from None
    emit(PhaseChanged(phase="preparing"))
    model = build(config.model, num_classes=len(dataset.classes), task=plan.task, side=side)
    if config.model.weights is not None:
        for message in load_weights(model, config.model.weights):
            emit(Warned(code="weights", message=message))
    job = build_job(plan, dataset, model.to(device), emit, force_compile=force_compile)
    return Prepared(job, dataset)


def _scanned(plan: Plan, side: int, emit: Emit, mailbox: Mailbox) -> Dataset:
    return open_dataset(
        plan.config.data,
        task=plan.task,
        side=side,
        seed=plan.config.training.seed,
        on_progress=lambda done, total: emit(Progress(phase="scanning", done=done, total=total)),
        should_stop=lambda: mailbox.stop_asked,
        on_warning=lambda message: emit(Warned(code="data", message=message)),
    )


def build_job(
    plan: Plan, dataset: Dataset, model: torch.nn.Module, emit: Emit, *, force_compile: bool
) -> Job:
    """The job of `plan` around a model that is on its device already."""
    config = plan.config
    memory_format = torch.channels_last if config.speed.channels_last else torch.contiguous_format
    loader = _LoaderMaker(plan, dataset, emit)
    return Job(
        config=config,
        model=model.to(memory_format=memory_format),
        task=build_task(plan.task, dataset.classes, config.training),
        num_classes=len(dataset.classes),
        device=torch.device(plan.device.torch_name),
        precision=plan.precision.used,
        train_loader=loader.make(dataset.train, train=True),
        val_loader=loader.make(dataset.val, train=False),
        force_compile=force_compile,
    )


def build_switch(plan: Plan, prepared: Prepared, profile: str, emit: Emit) -> tuple[Plan, Switch]:
    """The plan and the job of another preset for a run in progress.

    Raises:
        ConfigError: There is no such profile, or it can't be had in this run.
    """
    request = replace(plan.request, profile=profile)
    preset = resolve(profile, task=plan.task, flags=request.flags, sets=request.sets, environ=request.environ)
    config, changes, kept = switched(plan.config, preset.config)
    fresh = replace(
        plan,
        request=request,
        resolved=replace(preset, config=config),
        precision=choose_precision(config.precision.mode, plan.device),
        workers=plan.workers if config.data.workers == "auto" else config.data.workers,
    )
    if kept:
        emit(Warned(code="preset_kept", message=f"can't change in a run and stay: {', '.join(kept)}"))
    set_switches(config)
    job = build_job(
        fresh,
        prepared.dataset,
        prepared.job.model,
        emit,
        force_compile=False,
    )
    return fresh, Switch(job, preset.profile, plan.resolved.profile, changes)


class _LoaderMaker:
    """Makes the two loaders of a job."""

    def __init__(self, plan: Plan, dataset: Dataset, emit: Emit) -> None:
        self._plan, self._dataset, self._emit = plan, dataset, emit
        self._device = torch.device(plan.device.torch_name)

    def make(self, split: Split, *, train: bool) -> Loader:
        config = self._plan.config
        data, training = config.data, config.training
        side = int(data.image_size or 0)
        return Loader(
            split,
            task=self._plan.task,
            batch_size=training.batch_size,
            side=side,
            train=train,
            augment=train and data.augment == "default",
            seed=training.seed,
            device=self._device,
            channels_last=config.speed.channels_last,
            workers=self._plan.workers,
            prefetch=data.prefetch,
            cache=self._cache(split),
            mixup_alpha=data.mixup_alpha if train else 0.0,
            cutmix_alpha=data.cutmix_alpha if train else 0.0,
            num_classes=len(self._dataset.classes),
            # a short last batch is another shape, and each shape is compiled anew
            drop_last=train and config.speed.compile != "off" and len(split) >= training.batch_size,
            pad_last=not train,
            bad_budget=data.bad_sample_budget,
            on_bad=self._bad_sample,
            on_progress=lambda done, total: self._emit(Progress(phase="preparing", done=done, total=total)),
        )

    def _cache(self, split: Split) -> Literal["off", "device"]:
        if self._plan.config.data.cache != "auto":
            return self._plan.config.data.cache
        fits, _ = cache_fits(
            split,
            side=int(self._plan.config.data.image_size or 0),
            task=self._plan.task,
            device=self._device,
            has_ignored=self._dataset.has_ignored,
        )
        return "device" if fits else "off"

    def _bad_sample(self, problem: Problem) -> None:
        self._emit(Warned(code="bad_sample", message=f"left out {problem.path}: {problem.reason}"))
