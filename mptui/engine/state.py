"""The state of a run: everything that a bit-identical continuation needs, except settings.

Settings always come from the configuration. Random state is not saved: random numbers derive from the
position in the run (`StepSeeds`, `mptui.data.rng`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from mptui.data.learned import LearnedData
from mptui.engine.evaluate import SummedMetrics, metrics_of
from mptui.engine.hooks import Hooks
from mptui.engine.job import Job, Parts, build_parts, steps_left
from mptui.engine.optim.optimizers import OptimizerState, frozen_in
from mptui.engine.optim.schedule import ScheduleProgress
from mptui.engine.progress import Best, Cursor
from mptui.engine.reporting.reporter import AppliedMetrics, Reporter
from mptui.engine.reporting.step_time import read_now
from mptui.events import Event, Warned


@runtime_checkable
class Stateful(Protocol):
    """A part of a checkpoint, as in `torch.distributed.checkpoint.stateful.Stateful`."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and JSON-ready values by name."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Restore from a result of `state_dict`, which is empty if the checkpoint lacks this part."""


class TrainState:
    """The parts of a run by name; every attribute that is `Stateful` is saved and restored under its name.

    To save something else, make it Stateful and an attribute. Parts are restored in the order in which they
    were set: the position, and then hooks, since a guard may have chosen other settings.

    Attributes:
        step: Optimizer steps tried so far.
        job: The job, with the settings in force.
        given: The job without the fallbacks chosen by guards.
        parts: Objects built from the settings in force.
        cursor: Position in the data.
        hooks: The run's hooks, some of which are stateful.
        data: What the network learns from, which gives its outputs and inputs their meaning.
        model: The network.
        metrics: Training metrics of the epoch so far, on the device.
        window_metrics: Updates the metrics with the windows of steps that are applied.
        best: The best validation.
        report: Reports steps as events, and counts steps and samples.
        optimizer: Optimizer state by parameter name.
        average: The average of the weights (EMA or schedule-free), if there is one.
        scaler: The loss scale.
        schedule: Position in the learning-rate schedule.
        compiler: Whether the run is compiled.
    """

    def __init__(self, job: Job, emit: Callable[[Event], None]) -> None:
        self.step = 0
        self.job = self.given = job
        self.cursor = Cursor()
        self.hooks = Hooks()
        self.data = LearnedFrom(job.learned)
        self.model = job.model
        metrics = partial(job.task.metrics, job.device, training=True)
        self.metrics = metrics_of(metrics, job.ranks, job.device)
        own = self.metrics.own if isinstance(self.metrics, SummedMetrics) else self.metrics
        self.window_metrics = AppliedMetrics(own, metrics)
        self.best = Best(job.task.primary)
        self.report = Reporter(
            emit,
            job.device,
            job.config.logging.step_interval_s,
            metrics=self.metrics,
            host_metrics=job.task.metrics(torch.device("cpu"), training=True),
            in_step=not job.ranks.is_alone,
        )
        self._emit = emit

    def warn(self, code: str, message: str) -> None:
        """Emit a warning."""
        self._emit(Warned(step=self.step, code=code, message=message))

    @property
    def frozen_changes(self) -> bool:
        """Whether the epoch of the cursor freezes other layers than those frozen now."""
        return self.parts.frozen.frozen != frozen_in(self.job.config.training, self.cursor.epoch)

    def build(self, job: Job, kept: Parts | None) -> None:
        """Build the parts of `job` for the epoch of the cursor; what of `kept` still applies is reused."""
        self.job = job
        self.parts = parts = build_parts(job, self.warn, kept, self.steps_left(), epoch=self.cursor.epoch)
        self.optimizer = OptimizerState(job.config.training.optimizer, self.model, parts.optimizer)
        self.average = parts.average
        self.scaler = parts.precision
        self.schedule = SchedulePosition(self)
        self.compiler = parts.compiler
        self.report.scaled = parts.precision.scaled
        self.report.interval_s = job.config.logging.step_interval_s

    def take_length(self, job: Job) -> None:
        """Go on with `job`, which differs from the one in force in its length alone. Waits for the device."""
        self.job = job
        self.parts.take_length(job, self.steps_left())

    def stateful(self) -> list[str]:
        """Return the names of the parts of a checkpoint."""
        return [name for name, part in vars(self).items() if isinstance(part, Stateful)]

    def steps_left(self) -> int:
        """Return the optimizer steps ahead, if none is left out."""
        return steps_left(self.job, self.cursor, self.step)


class LearnedFrom:
    """The facts of the data that a run learns from, as a part of its checkpoints.

    Args:
        learned: The facts; None: they are not known.
    """

    def __init__(self, learned: LearnedData | None) -> None:
        self._learned = learned

    def state_dict(self) -> dict[str, Any]:
        """Return the facts; empty if they are not known."""
        return {} if self._learned is None else self._learned.record()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the facts of a checkpoint, if it has them, with those of the run, which stay.

        Raises:
            DataError: The network would misread the data of the run.
        """
        if state_dict and self._learned is not None:
            self._learned.check(LearnedData.read(state_dict))


class SchedulePosition:
    """Position of a run in its learning-rate schedule.

    Args:
        state: State of the run; the number of steps left depends on its cursor.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return rate, position and schedule. Waits for the device."""
        parts = self._state.parts
        return {
            "lr": read_now(parts.updater.lr)[0],
            "schedule": [parts.updater.position(), parts.schedule_steps],
            "standing": asdict(parts.schedule_progress()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position, in the schedule of the settings in force."""
        parts = self._state.parts
        parts.updater.lr.fill_(state_dict["lr"])
        if "standing" in state_dict:
            schedule_progress = ScheduleProgress(**state_dict["standing"])
        else:  # an older checkpoint, with position and last rate only
            position, total = state_dict["schedule"]
            now = parts.schedule.state()
            asked = now["asked"] if total == now["total"] else None  # of equal length: the same schedule
            schedule_progress = ScheduleProgress(
                position, {**now, "total": total, "asked": asked}, None, state_dict["lr"]
            )
        parts.resume(schedule_progress, self._state.steps_left())
