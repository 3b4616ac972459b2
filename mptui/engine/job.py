"""Builds precision, optimizer, EMA, update and compiler from a configuration, and after a switch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

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
    take_settings,
    trained_rates,
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
from mptui.engine.precision import Precision, apply_fp32_layers, build_precision
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
        changed: The settings that people have set since the run took the new profile.
        before: Current settings, JSON-ready; stored in the checkpoint to which an undo goes back.
        accept: Called once the switch can be applied, before it is; may raise DiskError.
        back_to: The state to restore, if this is an undo.
    """

    job: Job
    profile: str
    previous: str
    changes: dict[str, list[str]]
    changed: tuple[str, ...] = ()
    before: dict[str, Any] = field(default_factory=dict)
    accept: Callable[[], None] = lambda: None
    back_to: Snapshot | None = None


T = TypeVar("T")


class PartsInForce:
    """The parts of a run that may outlast a switch, by name: the key of each, and the part.

    Invariant: these act on the network, and no others, also after one could not be built: the job that comes
    next, which undoes the switch, builds what was ended, and ends what was built.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[object, Any]] = {}

    def take(
        self,
        name: str,
        key: object,
        build: Callable[[T | None], T],
        end: Callable[[T], object] = lambda part: None,
    ) -> T:
        """Return the part called `name`: the one in force, if its key is the same; else a new one.

        Args:
            name: Name of the part.
            key: All that it is built from, as far as jobs of one run differ in it.
            build: Builds it, given the one before it, which has ended; None: there was none.
            end: Takes it off the network.
        """
        before, part = self._parts.get(name, (None, None))
        if part is None or before != key:
            if part is not None:
                end(part)
                del self._parts[name]
            part = build(part)
            self._parts[name] = key, part
        return cast(T, part)


@dataclass(slots=True)
class Parts:
    """Objects of a run that are built from one configuration."""

    job: Job
    in_force: PartsInForce
    frozen: FrozenLayers
    schedule: Schedule
    precision: Precision
    optimizer: torch.optim.Optimizer
    average: AveragedWeights | None
    updater: Updater
    compiler: Compiler
    replica: Replica

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

    def take_length(self, job: Job, left: int) -> None:
        """Go on with the same job, but of another length, with `left` steps ahead. Waits for the device."""
        before = self.schedule_progress()
        self.job = job
        training = job.config.training
        self.schedule = schedule_of(training, job.train_loader.steps(training.accumulate))
        self.compiler.resume(left)
        if before.position:
            self.resume(before, left)
        else:
            self.updater.take_rates(self.schedule.rates)
            self.updater.seek(0)

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


def total_steps(job: Job, cursor: Cursor, step: int) -> int:
    """Return the optimizer steps of the whole run: those tried, in any batch, and those ahead in this one."""
    return step + steps_left(job, cursor, step)


def build_parts(
    job: Job, warn: Warn, kept: Parts | None = None, left: int | None = None, *, epoch: int = 0
) -> Parts:
    """Build the parts of `job`, and put its model into training mode.

    Args:
        job: The job to train.
        warn: Called with (code, message) for settings that can't be applied.
        kept: Parts of the previous job, around the same model; those stay that are built from the same.
        left: Optimizer steps ahead; None: all.
        epoch: The current epoch, from 0, which says what is frozen.
    """
    config, model, training = job.config, job.model, job.config.training
    schedule = schedule_of(training, job.train_loader.steps(training.accumulate))
    left = schedule.total_steps if left is None else left
    in_force = PartsInForce() if kept is None else kept.in_force
    lr = torch.zeros((), device=job.device) if kept is None else kept.updater.lr
    if kept is not None:
        kept.updater.close()
    take, layers = in_force.take, frozen_in(training, epoch)
    frozen = take("frozen", layers, lambda _: FrozenLayers(model, layers), lambda it: it.thaw())
    if kept is None and frozen.kept_in_eval:
        names = ", ".join(frozen.kept_in_eval[:_NAMES_SHOWN])
        more = "" if len(frozen.kept_in_eval) <= _NAMES_SHOWN else ", …"
        warn(
            "kept_in_eval",
            f"the network has put these parts into evaluation mode, they stay so: {names}{more}",
        )
    optimizer = take("optimizer", trained_rates(model, training), partial(_optimizer, job, lr))
    take_settings(optimizer, training)
    average = take("average", optimizer, partial(build_average, model, training, optimizer))
    scaling = job.precision, config.precision.grad_scaler
    precision = take("precision", scaling, partial(_precision, job))
    in_fp32 = config.precision.fp32_layers
    take("fp32 layers", in_fp32, lambda _: apply_fp32_layers(model, in_fp32, job.device), _unwrap)
    updater = Updater(
        model,
        optimizer,
        precision,
        lr=lr,
        rates=schedule.rates,
        clip_grad_norm=training.clip_grad_norm,
        average=average,
        shared_by=job.ranks if job.is_sharded else ALONE,
    )
    code = _compiled_for(job, frozen)
    compiler = take("compiler", code, lambda _: _compiler(job, frozen, left, warn), lambda it: it.undo())
    compiler.resume(left)
    asked = config.memory.activation_checkpointing
    take("checkpointing", asked, lambda _: apply_activation_checkpointing(model) if asked else [], _unwrap)
    share = layers, training.batch_size
    replica = take("replica", share, lambda _: _replica(job), lambda it: it.close())
    parts = Parts(job, in_force, frozen, schedule, precision, optimizer, average, updater, compiler, replica)
    if kept is not None:
        parts.resume(kept.schedule_progress(), left)
    return parts


def _optimizer(job: Job, lr: torch.Tensor, before: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    training = job.config.training
    if before is not None:
        return continued(before, job.model, training, lr)
    fused = job.config.speed.fused and supports_fused(training.optimizer, job.device)
    return build_optimizer(job.model, training, lr, fused=fused)


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


def _precision(job: Job, before: Precision | None) -> Precision:
    """Return one with the scale of that before it; another `init_scale` is where a person wants it now."""
    precision = build_precision(job.precision, job.device, job.config.precision.grad_scaler)
    if before is not None and before.init_scale == precision.init_scale:
        precision.load_state_dict(before.state_dict())
    return precision


def _unwrap(wrapped: Sequence[WrappedForward]) -> None:
    for each in wrapped:
        each.remove()


def _replica(job: Job) -> Replica:
    side = int(job.config.data.image_size or 0)
    # BatchNorm needs two; a synchronized one would count them as samples
    rows = 0 if has_synchronized_norm(job.model) else 2
    shape = (rows, *input_shape(job.config.model, job.config.data.channels, side))

    def dummy() -> Batch:
        return job.task.dummy_batch(torch.zeros(shape, device=job.device))

    if job.ranks.is_alone:
        return Replica(job.model)
    batch_size = job.config.training.batch_size
    if job.is_sharded:
        return ShardedReplica(job.model, job.ranks, dummy, batch_size)
    return SummedReplica(job.model, job.ranks, dummy, batch_size, device=job.device)


def _compiler(job: Job, frozen: FrozenLayers, left: int, warn: Warn) -> Compiler:
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
