"""The moving parts of a run, as its configuration makes them; another preset makes them anew."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mptui.config.schema import RunConfig
from mptui.data.loader import Loader
from mptui.engine.compiling import Compiler
from mptui.engine.ema import WeightAverage
from mptui.engine.guards.island import Island
from mptui.engine.islands import raise_islands
from mptui.engine.kept import Kept, facts_of
from mptui.engine.optim import build_optimizer, supports_fused, take_over
from mptui.engine.precision import Precision, build_precision
from mptui.engine.progress import Cursor
from mptui.engine.schedule import Schedule, place_in, scaled_lr
from mptui.engine.update import Updater
from mptui.tasks.base import Task

Warn = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What a trainer is given: everything in it is ready, and on the device."""

    config: RunConfig
    model: torch.nn.Module
    task: Task
    num_classes: int
    device: torch.device
    precision: str
    train_loader: Loader
    val_loader: Loader
    fallbacks: tuple[str, ...] = ("fp32",)
    """What the device computes in natively, beside fp16, where fp16 can't go on."""
    force_compile: bool = False
    device_name: str = ""
    """The name that people know it by: figures are kept by it."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Another preset for a run in progress: its job, and what that changes (table.key -> old, new)."""

    job: Job
    profile: str
    previous: str
    changes: dict[str, list[str]]


@dataclass(slots=True)
class Parts:
    """The moving parts of a run under one configuration."""

    job: Job
    steps_per_epoch: int
    schedule_steps: int
    precision: Precision
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    updater: Updater
    compiler: Compiler
    islands: list[Island]


def steps_left(job: Job, cursor: Cursor, step: int) -> int:
    """Optimizer steps of `job` beyond `cursor` and the `step` steps tried so far, if none is left out."""
    training = job.config.training
    of_this_epoch = cursor.sample // (training.batch_size * training.accumulate)
    left = (training.epochs - cursor.epoch) * job.train_loader.steps(training.accumulate) - of_this_epoch
    if training.max_steps is not None:
        left = min(left, training.max_steps - step)
    return max(0, left)


def build_parts(job: Job, warn: Warn, kept: Parts | None = None, left: int | None = None) -> Parts:
    """Make the parts of `job`.

    Args:
        job: What is trained.
        warn: Told (code, message) what the parts can't have.
        kept: The parts of the job before it, whose optimizer and average stay.
        left: Optimizer steps that lie ahead; None: all.
    """
    config, training = job.config, job.config.training
    steps_per_epoch = job.train_loader.steps(training.accumulate)
    schedule_steps = min(training.epochs * steps_per_epoch, training.max_steps or sys.maxsize)
    precision = build_precision(job.precision, job.device, config.precision.grad_scaler)
    if kept is None:
        lr = torch.zeros((), device=job.device)
        fused = config.speed.fused and supports_fused(job.device)
        optimizer = build_optimizer(job.model, training, lr, fused=fused)
        average = WeightAverage(job.model, training.ema_decay) if training.ema_decay else None
    else:
        lr, optimizer, average = kept.updater.lr, kept.optimizer, kept.average
        take_over(optimizer, training)
        kept.compiler.undo()
        kept.updater.close()
        for island in kept.islands:
            island.remove()
    islands = raise_islands(job.model, config.precision.fp32_layers, job.device)
    updater = Updater(
        job.model,
        optimizer,
        precision,
        lr=lr,
        lr_table=Schedule(training, scaled_lr(training), schedule_steps, steps_per_epoch).table(),
        clip_grad_norm=training.clip_grad_norm,
        average=average,
    )
    if left is None:
        left = schedule_steps
    if kept is not None:
        updater.seek(place_in(schedule_steps, left, kept.updater.position(), kept.schedule_steps))
    compiler = Compiler(
        job.model,
        config.speed.compile,
        job.device,
        forced=job.force_compile,
        steps=left,
        warn=warn,
        kept=_compile_cost(job),
        repeatable=training.deterministic,
    )
    return Parts(
        job, steps_per_epoch, schedule_steps, precision, optimizer, average, updater, compiler, islands
    )


def _compile_cost(job: Job) -> Kept:
    """Where it is kept what compiling such a job costs here."""
    config = job.config
    facts = facts_of(config, job.device_name, job.num_classes)
    how = {
        "mode": config.speed.compile,
        "precision": job.precision,
        "channels_last": config.speed.channels_last,
        "micro_batch": config.memory.micro_batch,
    }
    return Kept("compile", {**facts, **how})
