"""Predicts the effect of a switch to another profile. Imports no torch.

A live screen opens without the schema, so modules that use it are imported on demand.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.runs.store.directory import CONFIG, read_summary

if TYPE_CHECKING:
    from mptui.config.schema import RunConfig
    from mptui.engine.optim.schedule import RateChange
    from mptui.runs.planning.plan import Request


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position of a run, from its events.

    Attributes:
        step: Optimizer steps tried.
        epoch: Epoch, from 0.
        epoch_step: Optimizer steps in this epoch.
        train_samples: Samples of the training set.
        lr: The effective learning rate of the last step.
    """

    step: int
    epoch: int
    epoch_step: int
    train_samples: int
    lr: float


@dataclass(frozen=True, slots=True)
class SwitchPrediction:
    """The effect of a switch: `table.key` -> values of the run and of the profile, as text.

    `changes` apply with the switch; `kept` can't change during a run. `rate` is the change of the effective
    rate and batch at this step; None: the position of the run is unknown.
    """

    changes: Mapping[str, list[str]] = field(default_factory=dict)
    kept: Mapping[str, list[str]] = field(default_factory=dict)
    rate: "RateChange | None" = None


def predict_switch(
    run: Path,
    profile: str,
    request: "Request | None" = None,
    position: RunPosition | None = None,
    *,
    given: Sequence[str] = (),
) -> SwitchPrediction:
    """Compare the run in the directory `run` with `profile`; reads the disk.

    Args:
        run: The run directory, whose `run.toml` has the current settings.
        profile: Name of the profile.
        request: The request of the run, which takes precedence over profiles; None: unknown.
        position: Position of the run; None: unknown.
        given: Settings that the run has above any profile besides those of the request.

    Raises:
        ConfigError: The profile doesn't exist, or the run can't switch to it.
    """
    from mptui.config.change import switched, with_chosen
    from mptui.config.keys import SETTINGS, said, value_of, with_values
    from mptui.config.resolve import resolve
    from mptui.registry.models import task_of_model
    from mptui.runs.planning.plan import Request
    from mptui.runs.store.choices import chosen_at_start

    now = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    request = request or Request(environ=os.environ)
    resolved = resolve(
        profile,
        task=task_of_model(str(now.model.name)) or read_summary(run).get("task"),
        flags=request.flags,
        sets=request.sets,
        environ=request.environ,
        now=frozenset(),
    )
    preset = with_chosen(resolved, chosen_at_start(run)).config
    preset = with_values(preset, {key: value_of(now, key) for key in given if key in SETTINGS})
    switch = switched(now, preset)
    kept = {key: [said(value_of(now, key)), said(value_of(preset, key))] for key in switch.kept}
    rate = _rate_change(now, switch.config, position) if position is not None else None
    return SwitchPrediction(switch.changes, kept, rate)


def _rate_change(now: "RunConfig", then: "RunConfig", position: RunPosition) -> "RateChange":
    """Return the change of rate and batch, computed by the engine's function."""
    from mptui.engine.optim.schedule import (
        continue_schedule,
        rate_change,
        schedule_of,
        schedule_progress,
        steps_ahead,
    )

    samples = position.train_samples
    had, new = (schedule_of(each.training, steps_of_epoch(each, samples)) for each in (now, then))
    sample = position.epoch_step * now.training.batch_size * now.training.accumulate

    def left(config: "RunConfig") -> int:
        steps = steps_of_epoch(config, samples)
        return steps_ahead(config.training, steps, (position.epoch, sample), position.step)

    before = schedule_progress(had, max(0, had.total_steps - left(now)))
    before = replace(before, rate=position.lr)
    return rate_change(before, continue_schedule(new, left(then), before))


def steps_of_epoch(config: "RunConfig", train_samples: int) -> int:
    """Return the optimizer steps of an epoch."""
    from mptui.data.sampler import samples_used

    training = config.training
    used = samples_used(train_samples, training.batch_size, train=True)
    return -(-used // (training.batch_size * training.accumulate))
