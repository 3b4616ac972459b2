"""The selection before a run: profile, model, data and edits. Imports no torch."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mptui.config.dump import values_of
from mptui.config.given import EDITED, data_flags, read_value
from mptui.config.keys import SETTINGS, TABLES, acts, training_of
from mptui.config.merge import Resolved, resolve
from mptui.config.profiles import ProfileInfo
from mptui.config.schema import RunConfig, TrainingConfig
from mptui.config.switch import fixed_because
from mptui.config.validate import shown
from mptui.engine.optim.lr_schedule import scaled_lr, schedule_of, warmup_epochs
from mptui.errors import ConfigError
from mptui.format import counted
from mptui.hardware.advice import PrecisionChoice, batch_words, choose_precision
from mptui.hardware.devices import Device
from mptui.registry.models import task_of_model
from mptui.registry.tasks import DEFAULT_TASK
from mptui.runs.planning.plan import Request
from mptui.runs.planning.profile_diff import steps_of_epoch
from mptui.text import clean

PICKED = "picked"
_WHAT_ON = ("model.name", "data.name", "data.path", "hardware.device", "code.folder")
"""Settings that aren't saved in a profile: model, data and device, and the folder of their code."""

_DEFAULTS = values_of(RunConfig())


@dataclass(frozen=True, slots=True)
class Picked:
    """The selection for a run. Empty texts are chosen by the profile, the data and the device."""

    profile: str
    device: str = "auto"
    model: str = ""
    data: str = ""
    epochs: str = ""
    edits: Mapping[str, Any] = field(default_factory=dict)

    def flags(self) -> dict[str, tuple[str, Any]]:
        """Return the settings on top of the profile: table.key -> (source, value)."""
        flags: dict[str, tuple[str, Any]] = {"hardware.device": (PICKED, self.device)}
        if self.model:
            flags["model.name"] = (PICKED, self.model)
        if self.data:
            flags |= data_flags(self.data, PICKED)
        if self.epochs:
            value, _ = read_value(SETTINGS["training.epochs"], self.epochs)
            flags["training.epochs"] = (PICKED, value)
        return flags | {key: (EDITED, value) for key, value in self.edits.items()}

    @property
    def description(self) -> str:
        """The description of a profile saved from the selection."""
        edits = ", ".join(f"{key} = {value}" for key, value in self.edits.items())
        return f"{self.profile} with {edits}" if edits else f"A copy of {self.profile}"

    def request(self, resolution: Resolved, environ: Mapping[str, str] = os.environ) -> Request:
        """Return the request of the run, without the edits that did something for another network alone."""
        training = training_of(resolution.config, resolution.task)
        edits = {key: value for key, value in self.edits.items() if acts(key, training)}
        return Request(self.profile, replace(self, edits=edits).flags(), (), environ)


class Picks:
    """The selection; what a person typed stays when they choose another profile.

    Attributes:
        now: The current selection.
    """

    def __init__(self, first: Picked) -> None:
        self.now = first
        self._used: Mapping[str, Any] = {}

    def of(self, profile: str) -> Picked:
        """Return the selection with `profile`."""
        return replace(self.now, profile=profile)

    def choose(self, profile: str) -> None:
        """Select another profile."""
        self.now = self.of(profile)

    @property
    def has_unused(self) -> bool:
        """Whether there are edits that are neither saved nor used by a run."""
        return bool(self.now.edits) and self.now.edits != self._used

    def use(self) -> None:
        """Mark the edits as used by a run, which saves them in its directory."""
        self._used = self.now.edits

    def saved_as(self, profile: str) -> None:
        """Select the profile that was just saved, which has the edits."""
        self.now = replace(self.now, profile=profile, epochs="", edits={})


def resolved(picked: Picked, task: str | None, environ: Mapping[str, str] = os.environ) -> Resolved:
    """Merge the configuration, as far as it is known before the data is opened.

    Raises:
        ConfigError: A value is invalid, or two exclude each other.
    """
    task = (task_of_model(picked.model) if picked.model else None) or task or DEFAULT_TASK
    return resolve(picked.profile, task=task, flags=picked.flags(), sets=(), environ=environ)


def every_profile(
    profiles: Sequence[ProfileInfo],
    picks: Picks,
    task: str | None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[dict[str, Resolved], dict[str, str]]:
    """Resolve each profile with the selection: the valid ones, and the faults of the others."""
    resolutions, faults = {}, {}
    for info in profiles:
        try:
            resolutions[info.name] = resolved(picks.of(info.name), task, environ)
        except ConfigError as error:
            faults[info.name] = error.message
    return resolutions, faults


@dataclass(frozen=True, slots=True)
class Value:
    """A setting to show; `default` is set only if the value differs, `fixed` only if it can't be edited."""

    key: str
    value: str
    source: str
    default: str | None
    edited: bool = False
    fixed: str = ""

    @property
    def table(self) -> str:
        """Table of the setting in the schema."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Name of the setting within its table."""
        return self.key.partition(".")[2]

    @property
    def changed(self) -> bool:
        """Whether it is not the default, or was edited."""
        return self.default is not None or self.edited

    def has(self, words: Sequence[str]) -> bool:
        """Whether all `words`, in lower case, are in its key or its help text."""
        text = f"{self.key} {SETTINGS[self.key].help}".lower()
        return all(word in text for word in words)


def values(resolution: Resolved) -> list[Value]:
    """Return the editable settings that act, in the order of the schema, those of a step first."""
    return [
        replace(
            value,
            source="profile" if (source := resolution.sources[value.key]).startswith("profile ") else source,
            edited=source == EDITED,
        )
        for value in _in_order(resolution.config, resolution.task)
    ]


def values_of_run(resolution: Resolved) -> list[Value]:
    """Return the settings of a run, and why some can't change while it trains."""
    found = _in_order(resolution.config, resolution.task)
    return [replace(value, fixed=fixed_because(value.key)) for value in found]


def _in_order(config: RunConfig, task: str | None) -> list[Value]:
    """Return the settings that act in a run."""
    current, training = values_of(config), training_of(config, task)
    keys = sorted(
        (key for key in SETTINGS if key not in _WHAT_ON and acts(key, training)),
        key=lambda key: _ORDER[key.partition(".")[0]],
    )
    return [
        Value(
            key=key,
            value=plain(current[key]),
            source="",
            default=plain(_DEFAULTS[key]) if current[key] != _DEFAULTS[key] else None,
        )
        for key in keys
    ]


_FIRST = ("precision", "training", "speed", "data")
_ORDER = {table: n for n, table in enumerate(dict.fromkeys((*_FIRST, *TABLES)))}


def plain(value: object) -> str:
    """Format a value as it can be typed: text without quotes, lists as in TOML."""
    if isinstance(value, list):
        return clean(json.dumps(value, ensure_ascii=False))
    return shown(value).strip('"')


def to_save(picked: Picked, task: str | None, environ: Mapping[str, str] = os.environ) -> RunConfig:
    """Return the configuration to save as a profile, without model, data and device."""
    how = resolved(picked, task, environ).config
    default = RunConfig()
    return how.model_copy(
        update={
            "model": how.model.model_copy(update={"name": None, "task": None}),
            "data": how.data.model_copy(update={"name": None, "path": None}),
            "hardware": default.hardware,
            "code": default.code,
        }
    )


def in_words(
    resolution: Resolved, device: Device, ranks: int = 1, samples: int | None = None
) -> list[tuple[str, str, str]]:
    """Describe the run in a few lines: label, value, reason or meaning.

    Args:
        resolution: The run.
        device: The device of one process.
        ranks: Number of processes.
        samples: Number of training samples; None: not known.
    """
    config = resolution.config
    precision: PrecisionChoice = choose_precision(config.precision.mode, device)
    training = config.training
    effective = training.batch_size * training.accumulate
    batch = batch_words(training.batch_size, training.accumulate)
    compiled = "forced" if resolution.compile_forced else "if the run is long enough to repay it"
    return [
        ("precision", precision.used, precision.warning or precision.reason),
        (
            "batch",
            batch,
            f"{effective} per optimizer step" + (f", shared by {ranks} GPUs" if ranks > 1 else ""),
        ),
        ("lr", f"{scaled_lr(training):.3g}", _rate_words(training)),
        ("epochs", f"{training.epochs}", _course_words(config, samples)),
        ("compile", config.speed.compile, compiled if config.speed.compile != "off" else "eager code"),
    ]


def _course_words(config: RunConfig, samples: int | None) -> str:
    """Describe the steps of an epoch and of the run, and the schedule."""
    training = config.training
    if not samples:
        end = f", at most {training.max_steps:,} steps" if training.max_steps else ""
        return f"{training.schedule} schedule{end}"
    steps = steps_of_epoch(config, samples)
    total = schedule_of(training, steps).total_steps
    return f"{counted(steps, 'step')} each, {total:,} in all, {training.schedule}"


def rate_rule(before: TrainingConfig, after: TrainingConfig) -> str:
    """Describe what another batch does to the learning rate."""
    if after.lr_scaling == "off":
        return f'lr stays {after.lr:.3g}: training.lr_scaling = "off"'
    if after.lr_batch_size is None:
        return f"lr stays {after.lr:.3g}: training.lr_batch_size is unset"
    rates = f"{scaled_lr(before):.3g} → {scaled_lr(after):.3g}"
    return f"lr {rates}: {after.lr_scaling} in the batch, {after.lr:g} for {after.lr_batch_size}"


def _rate_words(training: TrainingConfig) -> str:
    """Describe the origin of the effective rate."""
    words: str = training.optimizer
    if scaled_lr(training) != training.lr:
        words += f", {training.lr:g} for a batch of {training.lr_batch_size}, scaled {training.lr_scaling}"
    if warmup := warmup_epochs(training):
        cut = f", not {training.warmup_epochs:g}" if warmup < training.warmup_epochs else ""
        words += f", {warmup:g} epoch{'s' if warmup != 1 else ''} of warm-up{cut}"
    return words
