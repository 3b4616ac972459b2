"""The length of a run whose time is limited (`training.time`): the steps that fit, by the measured rate.

They are counted anew every so often, and the schedule of the learning rate ends with the last of them. A
step, and the end of an epoch (validation and saves), each have a measured time of their own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from typing_extensions import override

from mptui.config.keys import with_values
from mptui.config.schema import TrainingConfig
from mptui.engine.context import TrainContext
from mptui.engine.epochs import EPOCHS, MAX_STEPS
from mptui.engine.hooks import Hook
from mptui.engine.job import Job
from mptui.engine.ranks.group import SyncPart
from mptui.events import LengthPlanned
from mptui.text import read_duration

ASSUMED_STEP_S = 0.1
"""Seconds of a step before one is measured; the first plan by measured ones follows two steps later."""
SHARE = 1 / 40
"""Largest share of the time between two plans."""
OF_REST = 1 / 5
"""Largest share of the remaining time between two plans: the last ones are a few steps apart."""
LEAST_S = 0.25
"""Least seconds between two plans: each waits for the device."""
SPANS, ENDS = 4, 3
"""Spans between two plans, and ends of epochs, by which the rate is known: it follows its changes."""
_FORWARD = 1 / 3
"""Time of a batch in validation as a share of a step's, before one is measured: without backward passes."""
_MOST_STEPS = 10**9


def assumed_steps(training: TrainingConfig) -> int:
    """Return the steps of a run of which only the time is known yet."""
    return max(1, int(read_duration(training.time or "") / ASSUMED_STEP_S))


class MeasuredTimes:
    """Seconds of a step, and of the end of an epoch, as measured lately."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, float]] = deque([(0, 0.0)], SPANS)
        self._ends: deque[float] = deque(maxlen=ENDS)
        self._since: float | None = None
        self._end_began: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether a step, or the end of an epoch of one step, has been measured."""
        return bool(self._ends) or any(steps for steps, _ in self._spans)

    @property
    def step_s(self) -> float:
        """Seconds of a step; 0 where each epoch has one, which counts to its end."""
        if not self.is_known:
            return ASSUMED_STEP_S
        steps, seconds = (sum(each) for each in zip(*self._spans, strict=True))
        return seconds / steps if steps else 0.0

    def end_s(self, val_batches: int) -> float:
        """Return the seconds of an epoch's end; before one is measured, of its validation alone."""
        return median(self._ends) if self._ends else val_batches * _FORWARD * self.step_s

    def interrupted(self) -> None:
        """Leave out the step that begins: it compiles, or is the first one."""
        self._since = self._end_began = None

    def step_ended(self, now: float) -> None:
        """Record the end of a step."""
        if self._since is not None:
            steps, seconds = self._spans[-1]
            self._spans[-1] = steps + 1, seconds + now - self._since
        elif self._end_began is not None:
            self._ends.append(max(0.0, now - self._end_began - self.step_s))
        self._since, self._end_began = now, None

    def epoch_ended(self) -> None:
        """Record that what comes before the next step is no part of it."""
        self._since, self._end_began = None, self._since

    def begin_span(self) -> None:
        """Begin another span of steps; the oldest one is forgotten."""
        if self._spans[-1][0]:
            self._spans.append((0, 0.0))

    def state_dict(self) -> dict[str, Any]:
        """Return what is measured."""
        return {"spans": [*self._spans], "ends": [*self._ends]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what was measured."""
        self._spans.extend((int(steps), float(seconds)) for steps, seconds in state_dict["spans"])
        self._ends.extend(map(float, state_dict["ends"]))


class TimeBudget(Hook, SyncPart):
    """Plans the length of a run with a `training.time`; all ranks have the plan of rank 0."""

    size = 1

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._times = MeasuredTimes()
        self._planned = 0
        self._told = 0
        self._next_s = 0.0
        context.ranks.agree_on("time", self)
        if self.active:
            self._take(assumed_steps(context.job.config.training))

    @property
    def active(self) -> bool:
        """Whether the time of the run is limited."""
        return self._context.job.config.training.time is not None

    @property
    def _budget_s(self) -> float:
        return read_duration(self._context.job.config.training.time or "")

    def step_begins(self) -> None:
        """Leave out a step that compiles, and the first one."""
        if self._context.phase != "training":
            self._times.interrupted()

    def step_ends(self) -> None:
        """Measure the step, and plan the rest of the run if that is due."""
        self._times.step_ended(self._context.seconds())
        if self._context.ranks.is_alone:
            self._told = self._due()
        if self._told:
            self._take(self._told, tell=True)
            self._told = 0

    def epoch_ends(self) -> None:
        """Measure validation and saves apart from the steps."""
        self._times.epoch_ended()

    def adapt_job(self, job: Job) -> Job:
        """Return the job with the length that is planned."""
        training = job.config.training
        if training.time is None:
            return job
        total = min(self._planned, training.max_steps or self._planned)
        cursor, steps_per_epoch = self._context.state.cursor, job.train_loader.steps(training.accumulate)
        left = total - self._context.state.step - self._steps_of_this_epoch(job)
        epochs = cursor.epoch + 1 + max(0, -(-left // steps_per_epoch))
        return replace(job, config=with_values(job.config, {MAX_STEPS: total, EPOCHS: epochs}))

    def settings_changed(self) -> None:
        """Plan after the next step, for the time that is set now."""
        self._next_s = self._context.seconds()

    @override
    def numbers(self) -> list[int]:
        """Return the steps of the whole run, if they are to be planned anew."""
        return [self._due() if self.active and self._context.ranks.is_first else 0]

    @override
    def on_numbers(self, rows: list[list[int]]) -> None:
        """Take the plan of rank 0, from the end of this step on."""
        self._told = rows[0][0] or self._told

    def state_dict(self) -> dict[str, Any]:
        """Return the plan, and the measured times; empty in a run without a limit."""
        if not self.active:
            return {}
        time = self._context.job.config.training.time
        return {"time": time, "planned": self._planned, "pace": self._times.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the plan; of another time, by the measured times."""
        if not state_dict or not self.active:
            return
        self._times.load_state_dict(state_dict["pace"])
        total = int(state_dict["planned"])
        if state_dict["time"] != self._context.job.config.training.time:
            total = self._context.ranks.broadcast(self._total())  # each rank has a clock of its own
        self._take(total)

    def _due(self) -> int:
        """Return the steps of the whole run if they are to be counted anew; 0: not now."""
        now = self._context.seconds()
        is_over = now >= self._budget_s
        if not is_over and (now < self._next_s or not self._times.is_known):
            return 0
        rest = max(0.0, self._budget_s - now)
        self._next_s = now + max(LEAST_S, min(SHARE * self._budget_s, OF_REST * rest, now / 2))
        total = self._total()
        self._times.begin_span()
        return total

    def _total(self) -> int:
        """Return the steps of the whole run that fit into its time."""
        context = self._context
        step, left_s = context.state.step, self._budget_s - context.seconds()
        per_epoch, here = context.parts.steps_per_epoch, self._steps_of_this_epoch(context.job)
        step_s = self._times.step_s
        end_s = self._times.end_s(context.job.val_loader.batches)
        first_s, epoch_s = here * step_s + end_s, per_epoch * step_s + end_s
        steps, rest_s = 0, left_s
        if epoch_s and rest_s >= first_s:
            epochs, rest_s = divmod(rest_s - first_s, epoch_s)
            steps = here + int(epochs) * per_epoch
        if step_s:
            steps += max(0, int((rest_s - end_s) / step_s))
        return min(step + steps, _MOST_STEPS) or 1

    def _steps_of_this_epoch(self, job: Job) -> int:
        """Return the steps left in the epoch of the cursor."""
        training = job.config.training
        done = self._context.state.cursor.sample // (training.batch_size * training.accumulate)
        return max(0, job.train_loader.steps(training.accumulate) - done)

    def _take(self, total: int, *, tell: bool = False) -> None:
        """Take a plan of `total` steps, and tell of it."""
        if total == self._planned:
            return
        self._planned = total
        context = self._context
        context.take_length(self.adapt_job(context.state.given))
        if tell:
            step, training = context.state.step, context.job.config.training
            context.emit(
                LengthPlanned(
                    step=step,
                    epochs=training.epochs,
                    total_steps=int(training.max_steps or 0),
                    planned_lr=context.parts.planned_lr(step),
                )
            )
