"""The learning rate as a closed form of the optimizer steps that were applied. Imports no torch.

A skipped step moves no schedule, and whether a step was skipped is known on the device long before the
host: so the whole schedule is a table on the device, looked up by the count of applied steps. Four bytes a
step: 10 million steps are 40 MB.

Every rate that is shown or used, of a run in progress or of one that is planned, comes from `Schedule`.
"""

import math
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.config.schema import TrainingConfig

RAMP_FACTOR = 4.0
"""A rate that rises by this factor, or a batch that changes by it, is approached by a ramp."""
RAMP_STEPS = 30
"""Steps of a ramp: momentum of 0.9 and BatchNorm's running statistics (0.1 anew a step) have by then
forgotten 96 % of what they held (0.9^30 = 0.04). Its linear form is Goyal et al.'s gradual warm-up (2017)."""
RAMP_SHARE = 0.25
"""Share of the steps ahead that a ramp takes at most, so that a short rest of a run still trains."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """The steps in which a run comes from one rate to its schedule, linearly.

    Attributes:
        first: Position of its first step in the schedule.
        steps: How many there are.
        rate: The rate that it starts from.
    """

    first: int
    steps: int
    rate: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of a run of `total_steps` optimizer steps, `steps_per_epoch` an epoch.

    Attributes:
        training: The settings that give its shape.
        peak_lr: The rate after the warm-up, already scaled to the effective batch.
        total_steps: Optimizer steps of the run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup: Steps of the warm-up, where an earlier part of the run has set them; None: by the settings.
        ramp: The steps after a change of settings in which the rate is approached.
    """

    training: TrainingConfig
    peak_lr: float
    total_steps: int
    steps_per_epoch: int
    warmup: int | None = None
    ramp: Ramp | None = None

    def table(self) -> npt.NDArray[np.float32]:
        """The rate of each step, float32, an epoch longer than the schedule.

        Another batch size in the middle of a run rounds its steps, and may need some at the final rate.
        """
        return self._rates(np.arange(self.total_steps + self.steps_per_epoch + 1, dtype=np.float64))

    def rate_at(self, position: int) -> float:
        """The rate of the step after `position` applied ones."""
        last = self.total_steps + self.steps_per_epoch
        return float(self._rates(np.array([min(position, last)], dtype=np.float64))[0])

    def target_at(self, position: int) -> float:
        """The rate after `position` applied steps that a ramp leads to."""
        return replace(self, ramp=None).rate_at(position)

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up: as asked for, and at most `training.warmup_max_fraction` of the run."""
        if self.warmup is not None:
            return self.warmup
        asked = round(self.training.warmup_epochs * self.steps_per_epoch)
        return min(asked, math.floor(self.training.warmup_max_fraction * self.total_steps + 1e-9))

    def state(self) -> dict[str, Any]:
        """All that the rates derive from, for a checkpoint; the ramp apart."""
        training = self.training
        return {
            "shape": [training.schedule, training.step_epochs, training.step_gamma],
            "batch": training.batch_size * training.accumulate,
            "peak": self.peak_lr,
            "total": self.total_steps,
            "epoch": self.steps_per_epoch,
            "warmup": self.warmup_steps,
            "asked": [training.warmup_epochs, training.warmup_max_fraction],
        }

    def _rates(self, steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        warmup = self.warmup_steps
        rates = self.peak_lr * self._decay(steps - warmup, max(1, self.total_steps - warmup))
        if warmup:
            # the first step has 1/(warmup + 1) of the peak, so that none is wasted on a rate of zero
            rates = np.where(steps < warmup, self.peak_lr * (steps + 1) / (warmup + 1), rates)
        if self.ramp is not None:
            done = steps - self.ramp.first + 1
            share = np.where(done < 1, 1.0, np.minimum(1.0, done / (self.ramp.steps + 1)))
            rates = self.ramp.rate + (rates - self.ramp.rate) * share
        return rates.astype(np.float32)

    def _decay(self, steps: npt.NDArray[np.float64], length: int) -> npt.NDArray[np.float64]:
        if self.training.schedule == "constant":
            return np.ones_like(steps)
        if self.training.schedule == "step":
            drops = np.floor(np.maximum(steps, 0) / (self.training.step_epochs * self.steps_per_epoch))
            return np.power(self.training.step_gamma, drops)
        # cosine annealing to zero (Loshchilov & Hutter 2017, without restarts)
        return 0.5 * (1 + np.cos(math.pi * np.clip(steps / length, 0, 1)))


def warmup_epochs(training: TrainingConfig) -> float:
    """Epochs that the warm-up takes, in a run that no number of steps ends earlier."""
    return min(training.warmup_epochs, training.warmup_max_fraction * training.epochs)


def schedule_of(training: TrainingConfig, steps_per_epoch: int) -> Schedule:
    """The schedule of a whole run with these settings."""
    total = min(training.epochs * steps_per_epoch, training.max_steps or sys.maxsize)
    return Schedule(training, scaled_lr(training), total, steps_per_epoch)


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """Where a run stands in its schedule between two steps, JSON-ready by `asdict`.

    Attributes:
        position: Applied steps.
        schedule: What `Schedule.state` said.
        ramp: The schedule's ramp, as `Ramp`'s three numbers.
        rate: The rate of the next step.
    """

    position: int
    schedule: dict[str, Any]
    ramp: dict[str, Any] | None
    rate: float


def schedule_progress(schedule: Schedule, position: int) -> ScheduleProgress:
    """Where a run stands after `position` applied steps of `schedule`."""
    ramp = None if schedule.ramp is None else asdict(schedule.ramp)
    return ScheduleProgress(position, schedule.state(), ramp, schedule.rate_at(position))


@dataclass(frozen=True, slots=True)
class ScheduleContinuation:
    """How a run continues in a schedule: from `position` applied steps; `gain` is new rate over old."""

    schedule: Schedule
    position: int
    gain: float


def continue_schedule(schedule: Schedule, left: int, before: ScheduleProgress) -> ScheduleContinuation:
    """Continue a run in another schedule, or in the same one.

    In a schedule as long as the one before it the run goes on after the steps applied there. In one of
    another length (another batch, more epochs) it goes on where the schedule ends with the run. The warm-up
    is not done twice: it ends at the epoch it was to end at.

    A rate that rises by `RAMP_FACTOR` or a batch that changes by it is approached by a ramp, from the rate
    before it or a `RAMP_FACTOR`th of the new one, whichever is lower. Other epochs with all else as it was
    start from the rate before. A lower rate is in force at once.

    Args:
        schedule: Of the whole run, under the settings in force from now on.
        left: Optimizer steps that lie ahead.
        before: Where the run stood.
    """
    had = before.schedule
    if had["asked"] == schedule.state()["asked"]:
        schedule = replace(schedule, warmup=_in_other_steps(had["warmup"], had["epoch"], schedule))
    new = schedule.state()
    position = before.position if had["total"] == new["total"] else schedule.total_steps - left
    if had == new:
        kept = None if before.ramp is None else Ramp(**before.ramp)
        return ScheduleContinuation(replace(schedule, ramp=kept), position, 1.0)
    rate = schedule.rate_at(position)
    gain = rate / before.rate if before.rate > 0 else math.inf
    other_batch = max(had["batch"] / new["batch"], new["batch"] / had["batch"])
    start: float | None = None
    if gain >= RAMP_FACTOR or other_batch >= RAMP_FACTOR:
        start = min(before.rate, rate / RAMP_FACTOR)
    elif had["batch"] == new["batch"] and had["peak"] == new["peak"]:
        start = before.rate
    steps = min(RAMP_STEPS, math.floor(RAMP_SHARE * left))
    ramp = None if start is None or not steps else Ramp(position, steps, start)
    return ScheduleContinuation(replace(schedule, ramp=ramp), position, gain)


@dataclass(frozen=True, slots=True)
class RateChange:
    """What a change of settings does to the effective rate and batch at a step.

    Attributes:
        lr: The learning rate before and after.
        batch: Samples of an optimizer step, before and after.
        ramp_steps: Steps in which the new rate is reached; 0: at once.
    """

    lr: tuple[float, float]
    batch: tuple[int, int]
    ramp_steps: int

    @property
    def is_large(self) -> bool:
        """Whether one of the two changes by `RAMP_FACTOR` or more."""
        return any(max(pair) >= RAMP_FACTOR * min(pair) for pair in (self.lr, self.batch))


def rate_change(before: ScheduleProgress, going: ScheduleContinuation) -> RateChange:
    """How the rate and the batch change where a run continues so."""
    schedule, ramp = going.schedule, going.schedule.ramp
    return RateChange(
        lr=(before.rate, schedule.target_at(going.position)),
        batch=(int(before.schedule["batch"]), int(schedule.state()["batch"])),
        ramp_steps=0 if ramp is None else max(0, ramp.first + ramp.steps - going.position),
    )


def steps_ahead(training: TrainingConfig, steps_per_epoch: int, place: tuple[int, int], step: int) -> int:
    """Optimizer steps beyond a `place` (epoch from 0, sample in it) and the `step` steps tried so far."""
    epoch, sample = place
    of_this_epoch = sample // (training.batch_size * training.accumulate)
    left = (training.epochs - epoch) * steps_per_epoch - of_this_epoch
    if training.max_steps is not None:
        left = min(left, training.max_steps - step)
    return max(0, left)


def _in_other_steps(warmup: int, steps_per_epoch: int, schedule: Schedule) -> int:
    if steps_per_epoch == schedule.steps_per_epoch:
        return warmup
    return round(warmup / steps_per_epoch * schedule.steps_per_epoch)


def scaled_lr(training: TrainingConfig) -> float:
    """The peak rate for the effective batch in use (Goyal et al. 2017: linear; Krizhevsky 2014: sqrt)."""
    if training.lr_batch_size is None or training.lr_scaling == "off":
        return training.lr
    ratio = training.batch_size * training.accumulate / training.lr_batch_size
    return training.lr * (ratio if training.lr_scaling == "linear" else math.sqrt(ratio))
