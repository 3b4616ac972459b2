"""What another preset would do to a run in progress, told before it is asked for. Imports no torch.

A live screen opens without the schema: what reads it is imported when it is asked for.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.runs.store.directory import CONFIG

if TYPE_CHECKING:
    from mptui.config.schema import RunConfig
    from mptui.engine.optim.lr_schedule import RateChange
    from mptui.runs.planning.plan import Request


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands, as its events tell.

    Attributes:
        step: Optimizer steps tried.
        epoch: From 0.
        epoch_step: Optimizer steps of this epoch.
        train_samples: Samples of the training set.
        lr: The effective learning rate of the last step.
    """

    step: int
    epoch: int
    epoch_step: int
    train_samples: int
    lr: float


@dataclass(frozen=True, slots=True)
class Foreseen:
    """`table.key` -> what the run has now and what the preset has, as text.

    `changes` come into force with the preset; `kept` can't change in a run, and stay as they are. `rate` is
    what becomes of the effective rate and batch at this step; None: it is not known where the run stands.
    """

    changes: Mapping[str, list[str]] = field(default_factory=dict)
    kept: Mapping[str, list[str]] = field(default_factory=dict)
    rate: "RateChange | None" = None


def foresee(
    run: Path, profile: str, request: "Request | None" = None, place: Place | None = None
) -> Foreseen:
    """Compare the run in the directory `run` with `profile`; waits for the disk.

    Args:
        run: Whose `run.toml` says what is in force.
        profile: The name of the preset.
        request: What the run was asked with, which goes above any preset; None: not known.
        place: Where the run stands; None: not known.

    Raises:
        ConfigError: There is no such preset, or it can't be had in this run.
    """
    from mptui.config.dump import values_of
    from mptui.config.merge import resolve
    from mptui.config.switch import switched
    from mptui.registry.models import task_of_model
    from mptui.runs.planning.plan import Request

    now = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    request = request or Request(environ=os.environ)
    preset = resolve(
        profile,
        task=task_of_model(str(now.model.name)),
        flags=request.flags,
        sets=request.sets,
        environ=request.environ,
    ).config
    switch = switched(now, preset)
    had, wanted = values_of(now), values_of(preset)
    kept = {key: [str(had[key]), str(wanted[key])] for key in switch.kept}
    rate = _rate_change(now, switch.config, place) if place is not None else None
    return Foreseen(switch.changes, kept, rate)


def _rate_change(now: "RunConfig", then: "RunConfig", place: Place) -> "RateChange":
    """What the engine will do of rate and batch, by the same function."""
    from mptui.engine.optim.lr_schedule import going_on, rate_change, schedule_of, standing, steps_ahead

    had, new = (schedule_of(each.training, _steps(each, place)) for each in (now, then))
    sample = place.epoch_step * now.training.batch_size * now.training.accumulate

    def left(config: "RunConfig") -> int:
        return steps_ahead(config.training, _steps(config, place), (place.epoch, sample), place.step)

    before = standing(had, max(0, had.total_steps - left(now)))
    before = replace(before, rate=place.lr)
    return rate_change(before, going_on(new, left(then), before))


def _steps(config: "RunConfig", place: Place) -> int:
    """Optimizer steps of an epoch."""
    from mptui.data.loading.lengths import samples_used

    training = config.training
    drop_last = config.speed.compile != "off" and place.train_samples >= training.batch_size
    used = samples_used(place.train_samples, training.batch_size, train=True, drop_last=drop_last)
    return -(-used // (training.batch_size * training.accumulate))
