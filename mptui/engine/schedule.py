"""The learning rate as a closed form of the optimizer steps that were applied.

A skipped step moves no schedule, and whether a step was skipped is known on the device long before the
host: so the whole schedule is a table on the device, looked up by the count of applied steps. Four bytes a
step: 10 million steps are 40 MB.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mptui.config.schema import TrainingConfig


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of a run of `total_steps` optimizer steps, `steps_per_epoch` an epoch.

    `peak_lr` is the rate after the warm-up, already scaled to the effective batch.
    """

    training: TrainingConfig
    peak_lr: float
    total_steps: int
    steps_per_epoch: int

    def table(self) -> npt.NDArray[np.float32]:
        """The rate of each step, float32, an epoch longer than the schedule.

        Another batch size in the middle of a run rounds its steps, and may need some at the final rate.
        """
        steps = np.arange(self.total_steps + self.steps_per_epoch + 1, dtype=np.float64)
        warmup = min(round(self.training.warmup_epochs * self.steps_per_epoch), self.total_steps)
        rates = self.peak_lr * self._decay(steps - warmup, max(1, self.total_steps - warmup))
        if warmup:
            # the first step has 1/(warmup + 1) of the peak, so that none is wasted on a rate of zero
            rates = np.where(steps < warmup, self.peak_lr * (steps + 1) / (warmup + 1), rates)
        return rates.astype(np.float32)

    def _decay(self, steps: npt.NDArray[np.float64], length: int) -> npt.NDArray[np.float64]:
        if self.training.schedule == "constant":
            return np.ones_like(steps)
        if self.training.schedule == "step":
            drops = np.floor(np.maximum(steps, 0) / (self.training.step_epochs * self.steps_per_epoch))
            return np.power(self.training.step_gamma, drops)
        # cosine annealing to zero (Loshchilov & Hutter 2017, without restarts)
        return 0.5 * (1 + np.cos(math.pi * np.clip(steps / length, 0, 1)))


def place_in(total_steps: int, left: int, applied: int, length: int) -> int:
    """Where a run goes on in its schedule of `total_steps`, `left` of which lie ahead.

    In a schedule as long as the one before it that is after the steps `applied` there. In one of another
    `length` (another batch, more epochs) it is where the schedule ends with the run.
    """
    return applied if length == total_steps else total_steps - left


def scaled_lr(training: TrainingConfig) -> float:
    """The peak rate for the effective batch in use (Goyal et al. 2017: linear; Krizhevsky 2014: sqrt)."""
    if training.lr_batch_size is None or training.lr_scaling == "off":
        return training.lr
    ratio = training.batch_size * training.accumulate / training.lr_batch_size
    return training.lr * (ratio if training.lr_scaling == "linear" else math.sqrt(ratio))
