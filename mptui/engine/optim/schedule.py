"""The learning rate as a closed-form function of the applied optimizer steps. Imports no torch.

A skipped step does not advance the schedule, and the device knows that a step was skipped long before the
host: so the rates of the next `TABLE_STEPS` steps are a table on the device, indexed by the count of applied
steps. Its size does not depend on the length of the run.

Every rate that is shown or used, of a running or a planned run, comes from `Schedule`.
"""

import math
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.config.schema import TrainingConfig

RAMP_FACTOR = 4.0
"""Factor of a rise in rate, or a change in batch size, from which a ramp is used."""
RAMP_STEPS = 30
"""Steps of a ramp: by then momentum of 0.9 and BatchNorm's running statistics (0.1 per step) have decayed by
96 % (0.9^30 = 0.04). The linear form is the gradual warm-up of Goyal et al. (2017)."""
RAMP_SHARE = 0.25
"""Maximum share of the remaining steps that a ramp takes, so that a short rest of a run still trains."""

TABLE_STEPS = 16_384
"""Steps whose rates are computed at once: a wait for the device in each so many is not noticed, and they take
64 KiB."""

_ROUNDING = 1e-6
"""Relative difference of two float32 rates that are the same."""

PLANNED_POINTS = 97
"""Points of the planned rates on a chart: about one for each two of its columns."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A linear transition from a rate to the schedule.

    Attributes:
        first: Position of its first step in the schedule.
        steps: Number of steps.
        rate: Initial rate.
    """

    first: int
    steps: int
    rate: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of a run of `total_steps` optimizer steps.

    Attributes:
        training: Settings that define its shape.
        peak_lr: Rate after the warm-up, already scaled to the effective batch.
        total_steps: Optimizer steps of the run.
        steps_per_epoch: Optimizer steps per epoch.
        warmup: Warm-up steps, if set by an earlier part of the run; None: by the settings.
        ramp: Transition to the schedule after a change of settings.
    """

    training: TrainingConfig
    peak_lr: float
    total_steps: int
    steps_per_epoch: int
    warmup: int | None = None
    ramp: Ramp | None = None

    def rates(self, position: int, count: int = TABLE_STEPS) -> npt.NDArray[np.float32]:
        """Return the rates of the `count` steps after `position` applied ones, float32.

        They go on for an epoch after the schedule, and stay as they are then: a change of batch size during a
        run rounds its steps, so that it may take more at the final rate.
        """
        last = self.total_steps + self.steps_per_epoch
        return self._rates(np.minimum(np.arange(position, position + count, dtype=np.float64), last))

    def rate_at(self, position: int) -> float:
        """Return the rate of the step after `position` applied ones."""
        return float(self.rates(position, 1)[0])

    def target_at(self, position: int) -> float:
        """Return the rate after `position` applied steps without the ramp."""
        return replace(self, ramp=None).rate_at(position)

    def planned(self, position: int, step: int) -> list[list[float]]:
        """Return [step, rate] from `position` applied steps to the end, `PLANNED_POINTS` of them at most.

        Args:
            position: Applied steps so far.
            step: The step of the run that it belongs to.
        """
        ahead = np.unique(np.linspace(position, max(position, self.total_steps), PLANNED_POINTS).round())
        rates = self._rates(ahead).tolist()
        return [
            [step - position + at, float(f"{rate:.4g}")]
            for at, rate in zip(ahead.tolist(), rates, strict=True)
        ]

    @property
    def warmup_steps(self) -> int:
        """Warm-up steps: as configured, at most `training.warmup_max_fraction` of the run."""
        if self.warmup is not None:
            return self.warmup
        most = math.floor(self.training.warmup_max_fraction * self.total_steps + 1e-9)
        return round(min(self.training.warmup_epochs * self.steps_per_epoch, most))

    def state(self) -> dict[str, Any]:
        """Return everything that determines the rates, except the ramp, for a checkpoint."""
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
            # the first step has 1/(warmup + 1) of the peak: a rate of zero would waste it
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
    """Return the epochs of the warm-up, for a run without `max_steps`; with a `time`, the most it has."""
    if training.time is not None:
        return training.warmup_epochs
    return min(training.warmup_epochs, training.warmup_max_fraction * training.epochs)


def schedule_of(training: TrainingConfig, steps_per_epoch: int) -> Schedule:
    """Return the schedule of a whole run with these settings."""
    total = min(training.epochs * steps_per_epoch, training.max_steps or sys.maxsize)
    return Schedule(training, scaled_lr(training), total, steps_per_epoch)


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """Position of a run in its schedule between two steps, JSON-ready by `asdict`.

    Attributes:
        position: Applied steps.
        schedule: Result of `Schedule.state`.
        ramp: The schedule's ramp, as the fields of `Ramp`.
        rate: Rate of the next step.
    """

    position: int
    schedule: dict[str, Any]
    ramp: dict[str, Any] | None
    rate: float


def schedule_progress(schedule: Schedule, position: int) -> ScheduleProgress:
    """Return the progress of a run after `position` applied steps of `schedule`."""
    ramp = None if schedule.ramp is None else asdict(schedule.ramp)
    return ScheduleProgress(position, schedule.state(), ramp, schedule.rate_at(position))


@dataclass(frozen=True, slots=True)
class ScheduleContinuation:
    """Continuation of a run in a schedule from `position` applied steps; `gain` is new rate over old."""

    schedule: Schedule
    position: int
    gain: float


def continue_schedule(schedule: Schedule, left: int, before: ScheduleProgress) -> ScheduleContinuation:
    """Continue a run in another schedule, or in the same one.

    In a schedule of the same length, or with the same batches, the run keeps its position. In another one
    the position is such that the schedule ends with the run. The warm-up is not repeated: it ends at the same
    epoch as before, but for one under way in a run with a `training.time`.

    If the rate rises, or the batch changes, by `RAMP_FACTOR` or more, a ramp starts from the previous rate or
    1/`RAMP_FACTOR` of the new one, whichever is lower. If only the number of epochs changes, and the rate by
    that, it starts from the previous rate. A lower rate takes effect at once.

    Args:
        schedule: Schedule of the whole run under the new settings.
        left: Optimizer steps ahead.
        before: Previous standing of the run.
    """
    had = before.schedule
    # how long a timed run is shows as it trains: its warm-up is a share of that until it is over
    is_open = schedule.training.time is not None and before.position < had["warmup"]
    if had["asked"] == schedule.state()["asked"] and not is_open:
        schedule = replace(schedule, warmup=_in_other_steps(had["warmup"], had["epoch"], schedule))
    new = schedule.state()
    same_steps = all(had[key] == new[key] for key in ("epoch", "batch")) or had["total"] == new["total"]
    position = before.position if same_steps else schedule.total_steps - left
    if had == new:
        kept = None if before.ramp is None else Ramp(**before.ramp)
        return ScheduleContinuation(replace(schedule, ramp=kept), position, 1.0)
    rate = schedule.rate_at(position)
    gain = rate / before.rate if before.rate > 0 else math.inf
    other_batch = max(had["batch"] / new["batch"], new["batch"] / had["batch"])
    start: float | None = None
    if is_open:  # the warm-up is a ramp
        return ScheduleContinuation(schedule, position, gain)
    if gain >= RAMP_FACTOR or other_batch >= RAMP_FACTOR:
        start = min(before.rate, rate / RAMP_FACTOR)
    elif abs(gain - 1) > _ROUNDING and all(had[key] == new[key] for key in ("batch", "peak")):
        start = before.rate
    steps = min(RAMP_STEPS, math.floor(RAMP_SHARE * left))
    ramp = None if start is None or not steps else Ramp(position, steps, start)
    return ScheduleContinuation(replace(schedule, ramp=ramp), position, gain)


@dataclass(frozen=True, slots=True)
class RateChange:
    """Effect of a change of settings on learning rate and batch.

    Attributes:
        lr: Learning rate before and after.
        batch: Samples per optimizer step, before and after.
        ramp_steps: Steps until the new rate is reached; 0: at once.
    """

    lr: tuple[float, float]
    batch: tuple[int, int]
    ramp_steps: int


def rate_change(before: ScheduleProgress, going: ScheduleContinuation) -> RateChange:
    """Return the change of rate and batch from `before` to `going`."""
    schedule, ramp = going.schedule, going.schedule.ramp
    return RateChange(
        lr=(before.rate, schedule.target_at(going.position)),
        batch=(int(before.schedule["batch"]), int(schedule.state()["batch"])),
        ramp_steps=0 if ramp is None else max(0, ramp.first + ramp.steps - going.position),
    )


def steps_ahead(training: TrainingConfig, steps_per_epoch: int, place: tuple[int, int], step: int) -> int:
    """Return the optimizer steps after `place` (epoch from 0, sample in it) and `step` steps tried so far."""
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
    """Return the peak rate for the effective batch (Goyal et al. 2017: linear; Krizhevsky 2014: sqrt)."""
    if training.lr_batch_size is None or training.lr_scaling == "off":
        return training.lr
    ratio = training.batch_size * training.accumulate / training.lr_batch_size
    return training.lr * (ratio if training.lr_scaling == "linear" else math.sqrt(ratio))
