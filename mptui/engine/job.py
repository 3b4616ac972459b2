"""Builds precision, optimizer, EMA, update and compiler from a configuration, and after a switch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from mptui.config.schema import RunConfig, TrainingConfig
from mptui.data.batch import Batch
from mptui.data.learned import LearnedData
from mptui.data.loader import Loader
from mptui.data.types import Split
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.compile import CachedResult, CompileCost, Compiler, facts_of
from mptui.engine.optim.averages import AveragedWeights, ScheduleFree, ScheduleFreeAverage, WeightAverage
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import (
    FrozenLayers,
    build_optimizer,
    continued,
    frozen_in,
    shrink_momentum,
    supports_fused,
)
from mptui.engine.optim.schedule import (
    RAMP_FACTOR,
    Schedule,
    ScheduleProgress,
    continue_schedule,
    schedule_of,
    schedule_progress,
    steps_ahead,
)
from mptui.engine.precision import Fp32Region, Precision, apply_fp32_layers, build_precision
from mptui.engine.progress import Cursor
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.engine.ranks.replica import Replica, ShardedReplica, SummedReplica
from mptui.models.layers import WrappedForward, apply_activation_checkpointing, has_synchronized_norm
from mptui.models.zoo import input_shape
from mptui.tasks.base import Task

_NAMES_SHOWN = 5
Warn = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a run needs: configuration, model, task, loaders; the model is on the device."""

    config: RunConfig
    model: torch.nn.Module
    task: Task
    num_classes: int
    device: torch.device
    precision: str
    train_loader: Loader
    val_loader: Loader
    fallbacks: tuple[str, ...] = ("fp32",)
    """Precisions to fall back to from fp16, which the device supports natively."""
    force_compile: bool = False
    device_name: str = ""
    """Product name of the device; a key of cached results."""
    ranks: Ranks = field(default_factory=Ranks.alone)
    """The processes that train the model together."""
    val_split: Split | None = None
    """The samples of the validation loader; None: nobody asks for them."""
    learned: LearnedData | None = None
    """What the model learns from; None: its checkpoints don't say it."""

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the model's weights."""
        return self.config.memory.shard and not self.ranks.is_alone


@dataclass(frozen=True, slots=True)
class ProfileSwitch:
    """A switch of a running run to other settings, or its undo.

    Attributes:
        job: The job with the new settings.
        profile: Name of the new profile.
        previous: Name of the current profile.
        changes: Changed settings (table.key -> old, new).
        before: Current settings, JSON-ready; stored in the checkpoint for an undo.
        accept: Called once the switch can be applied, before it is; may raise DiskError.
        back_to: The state to restore, if this is an undo.
    """

    job: Job
    profile: str
    previous: str
    changes: dict[str, list[str]]
    before: dict[str, Any] = field(default_factory=dict)
    accept: Callable[[], None] = lambda: None
    back_to: Snapshot | None = None


@dataclass(slots=True)
class Parts:
    """Objects of a run that are built from one configuration."""

    job: Job
    frozen: FrozenLayers
    schedule: Schedule
    precision: Precision
    optimizer: torch.optim.Optimizer
    average: AveragedWeights | None
    updater: Updater
    compiler: Compiler
    replica: Replica
    fp32_regions: list[Fp32Region]
    checkpointing: list[WrappedForward]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch."""
        return self.schedule.steps_per_epoch

    @property
    def schedule_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.schedule.total_steps

    def schedule_progress(self) -> ScheduleProgress:
        """Return the position of the run in its schedule. Waits for the device."""
        return schedule_progress(self.schedule, self.updater.position())

    def planned_lr(self, step: int) -> list[list[float]]:
        """Return the planned [step, rate] from `step` on, the step of the run now. Waits for the device."""
        return self.schedule.planned(self.updater.position(), step)

    def resume(self, before: ScheduleProgress, left: int) -> None:
        """Continue from the progress `before` in the schedule of this configuration, with `left` steps ahead.

        Momentum is a sum of past gradients, which the rate multiplies: a large rise of the rate would amplify
        them, too. Momentum is therefore scaled down by the same factor (the momentum correction of Goyal et
        al. 2017, section 3).
        """
        going = continue_schedule(self.schedule, left, before)
        self.schedule = going.schedule
        self.updater.take_rates(going.schedule.rates)
        self.updater.seek(going.position)
        if going.gain >= RAMP_FACTOR:
            shrink_momentum(self.optimizer, self.job.config.training.optimizer, 1 / going.gain)


def steps_left(job: Job, cursor: Cursor, step: int) -> int:
    """Return the optimizer steps of `job` after `cursor` and `step` steps tried, if none is left out."""
    training = job.config.training
    steps_per_epoch = job.train_loader.steps(training.accumulate)
    return steps_ahead(training, steps_per_epoch, (cursor.epoch, cursor.sample), step)


def build_parts(
    job: Job, warn: Warn, kept: Parts | None = None, left: int | None = None, *, epoch: int = 0
) -> Parts:
    """Build the parts of `job`, and put its model into training mode.

    Args:
        job: The job to train.
        warn: Called with (code, message) for settings that can't be applied.
        kept: Parts of the previous job, whose optimizer and average are reused.
        left: Optimizer steps ahead; None: all.
        epoch: The current epoch, from 0, which says what is frozen.
    """
    config, training = job.config, job.config.training
    schedule = schedule_of(training, job.train_loader.steps(training.accumulate))
    left = schedule.total_steps if left is None else left
    if kept is not None:
        kept.updater.close()
        kept.frozen.thaw()
    frozen = FrozenLayers(job.model, frozen_in(training, epoch))
    if kept is None and frozen.kept_in_eval:
        names = ", ".join(frozen.kept_in_eval[:_NAMES_SHOWN])
        more = "" if len(frozen.kept_in_eval) <= _NAMES_SHOWN else ", …"
        warn(
            "kept_in_eval",
            f"the network has put these parts into evaluation mode, they stay so: {names}{more}",
        )
    if kept is None:
        lr = torch.zeros((), device=job.device)
        fused = config.speed.fused and supports_fused(training.optimizer, job.device)
        optimizer = build_optimizer(job.model, training, lr, fused=fused)
        average = build_average(job.model, training, optimizer, None)
    else:
        lr = kept.updater.lr
        optimizer = continued(kept.optimizer, job.model, training, lr)
        average = kept.average
        if optimizer is not kept.optimizer:
            average = build_average(job.model, training, optimizer, average)
    precision = _precision(job, kept)
    fp32_regions = _fp32_regions(job, kept)
    updater = Updater(
        job.model,
        optimizer,
        precision,
        lr=lr,
        rates=schedule.rates,
        clip_grad_norm=training.clip_grad_norm,
        average=average,
        shared_by=job.ranks if job.is_sharded else ALONE,
    )
    compiler = _compiler(job, frozen, kept, left, warn=warn)
    checkpointing = _checkpointing(job, kept)
    replica = _replica(job, frozen, kept)
    parts = Parts(
        job,
        frozen,
        schedule,
        precision,
        optimizer,
        average,
        updater,
        compiler,
        replica,
        fp32_regions,
        checkpointing,
    )
    if kept is not None:
        parts.resume(kept.schedule_progress(), left)
    return parts


def build_average(
    model: torch.nn.Module,
    training: TrainingConfig,
    optimizer: torch.optim.Optimizer,
    kept: AveragedWeights | None,
) -> AveragedWeights | None:
    """Return the average of the trained weights, which goes on from `kept`; None if there is none."""
    if isinstance(optimizer, ScheduleFree):
        return ScheduleFreeAverage(model, optimizer)
    if not training.ema_decay:
        return None
    average = WeightAverage(model, training.ema_decay)
    if kept is not None:
        average.load_state_dict(kept.state_dict())
    return average


def _precision(job: Job, kept: Parts | None) -> Precision:
    """Return the previous precision if its settings are unchanged; else a new one, which keeps its scale.

    Another `init_scale` is where a person wants the scale to be now.
    """
    scaler = job.config.precision.grad_scaler
    if kept is None or job.precision != kept.job.precision:
        return build_precision(job.precision, job.device, scaler)
    before = kept.job.config.precision.grad_scaler
    if scaler == before:
        return kept.precision
    precision = build_precision(job.precision, job.device, scaler)
    if scaler.init_scale == before.init_scale:
        precision.load_state_dict(kept.precision.state_dict())
    return precision


def _replica(job: Job, frozen: FrozenLayers, kept: Parts | None) -> Replica:
    """Return the previous replica if it trains the same layers; else a new one."""
    if job.ranks.is_alone:
        return Replica(job.model)
    side = int(job.config.data.image_size or 0)
    # BatchNorm needs two; a synchronized one would count them as samples
    rows = 0 if has_synchronized_norm(job.model) else 2
    shape = (rows, *input_shape(job.config.model, job.config.data.channels, side))

    def dummy() -> Batch:
        return job.task.dummy_batch(torch.zeros(shape, device=job.device))

    batch_size = job.config.training.batch_size
    if job.is_sharded:
        return ShardedReplica(job.model, job.ranks, dummy, batch_size)
    if kept is not None:
        if kept.frozen.frozen == frozen.frozen and kept.job.config.training.batch_size == batch_size:
            return kept.replica
        kept.replica.close()
    return SummedReplica(job.model, job.ranks, dummy, batch_size, device=job.device)


def _fp32_regions(job: Job, kept: Parts | None) -> list[Fp32Region]:
    layers = job.config.precision.fp32_layers
    if kept is not None:
        if kept.job.config.precision.fp32_layers == layers:
            return kept.fp32_regions
        for region in kept.fp32_regions:
            region.remove()
    return apply_fp32_layers(job.model, layers, job.device)


def _checkpointing(job: Job, kept: Parts | None) -> list[WrappedForward]:
    asked = job.config.memory.activation_checkpointing
    if kept is not None:
        if kept.job.config.memory.activation_checkpointing == asked:
            return kept.checkpointing
        for wrapped in kept.checkpointing:
            wrapped.remove()
    return apply_activation_checkpointing(job.model) if asked else []


def _compiler(job: Job, frozen: FrozenLayers, kept: Parts | None, left: int, *, warn: Warn) -> Compiler:
    """Return the previous compiler if its compiled code is valid for this job; else a new one."""
    if kept is not None:
        if _compiled_for(kept.job, kept.frozen) == _compiled_for(job, frozen):
            kept.compiler.resume(left)
            return kept.compiler
        kept.compiler.undo()
    return Compiler(
        job.model,
        job.config.speed.compile,
        job.device,
        forced=job.force_compile,
        steps=left,
        warn=warn,
        cost=_compile_cost(job, frozen),
        repeatable=job.config.training.deterministic,
        ranks=job.ranks,
        graphs=_has_graphs(job),
    )


def _compile_cost(job: Job, frozen: FrozenLayers) -> CompileCost | None:
    mode = job.config.speed.compile
    if mode == "off":
        return None
    own = _compiled_for(job, frozen)
    any_network = {name: own[name] for name in ("device", "torch", "threads", "mode")}
    caches = CachedResult("compile", own), CachedResult("compile-start", any_network)
    return CompileCost(mode, job.device, *caches, ranks=job.ranks)


def _has_graphs(job: Job) -> bool:
    """Whether CUDA graphs may be used: they were never tried with several ranks, or with recomputation."""
    return job.ranks.is_alone and not job.config.memory.activation_checkpointing


def _compiled_for(job: Job, frozen: FrozenLayers) -> dict[str, object]:
    """Return everything that compiled code, its cost and its gain depend on."""
    config = job.config
    facts = facts_of(config, job.device_name, job.num_classes)
    how: dict[str, object] = {
        "mode": config.speed.compile,
        "precision": job.precision,
        "channels_last": config.speed.channels_last,
        "micro_batch": config.memory.micro_batch,
    }
    if frozen.frozen:
        how["frozen"] = frozen.frozen
    return {**facts, **how} | ({} if _has_graphs(job) else {"graphs": False})
