"""Another preset in the middle of a run: what it may change, and what stays as the run began.

Weights, optimizer, the place in the schedule and in the data carry over, so what they depend on can't change.
"""

import re
from dataclasses import dataclass

from pydantic import ValidationError

from mptui.config.dump import value_of
from mptui.config.keys import SETTINGS
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError

_TAKEN_TABLES = ("precision.", "guards.", "checkpoint.", "memory.")
_TAKEN_KEYS = {
    "training.batch_size",
    "training.accumulate",
    "training.clip_grad_norm",
    "training.label_smoothing",
    "training.early_stopping_patience",
    "speed.compile",
    "data.workers",
    "data.prefetch",
    "data.augment",
    "data.mixup_alpha",
    "data.cutmix_alpha",
    "data.bad_sample_budget",
    "logging.step_interval_s",
}
# A rate is right for one optimizer: these come along only where both presets have the same.
_OF_THE_OPTIMIZER = {
    "training.lr",
    "training.lr_scaling",
    "training.lr_batch_size",
    "training.momentum",
    "training.weight_decay",
}


@dataclass(frozen=True, slots=True)
class Switched:
    """What a run has under another preset.

    Attributes:
        config: The new configuration.
        changes: table.key -> old and new, as text.
        kept: The keys in which the preset differs but which can't change in a run, and why where it is only
            for this run; "" where they never can.
    """

    config: RunConfig
    changes: dict[str, list[str]]
    kept: dict[str, str]


def switched(current: RunConfig, preset: RunConfig) -> Switched:
    """Put `preset` in force over `current`: what can change in a run changes, the rest is kept.

    Raises:
        ConfigError: What stays can't be had with what changes.
    """
    wanted, kept = _wanted(current, preset)
    while True:
        document = current.model_dump()
        document["description"] = preset.description
        for key in wanted:
            _set(document, key, value_of(preset, key))
        try:
            config = RunConfig.model_validate(document)
        except ValidationError as error:
            faults = [line for each in error.errors() for line in str(each["ctx"]["error"]).splitlines()]
        else:
            changes = {key: [str(value_of(current, key)), str(value_of(preset, key))] for key in wanted}
            return Switched(config, changes, kept)
        # what stays as the run began rules out some of what the preset brings: that stays, too
        ruled_out = {key: fault for fault in faults for key in wanted if _names(fault, key)}
        if not ruled_out:
            told = "; ".join(faults)
            raise ConfigError(
                f"the preset can't be taken in this run: {told}", hint="switch to another preset"
            )
        wanted = [key for key in wanted if key not in ruled_out]
        kept |= ruled_out


def _wanted(current: RunConfig, preset: RunConfig) -> tuple[list[str], dict[str, str]]:
    """The keys in which `preset` differs from `current`: those that can change in a run, and the others."""
    same_optimizer = current.training.optimizer == preset.training.optimizer
    wanted, kept = [], {}
    for key in SETTINGS:
        if value_of(current, key) == value_of(preset, key):
            continue
        taken = key.startswith(_TAKEN_TABLES) or key in _TAKEN_KEYS
        if taken or (same_optimizer and key in _OF_THE_OPTIMIZER):
            wanted.append(key)
        elif not key.startswith(("model.", "data.", "hardware.")):
            kept[key] = ""
    return wanted, kept


def _names(fault: str, key: str) -> bool:
    """Whether a fault of the schema names a key as a whole."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", fault) is not None


def _set(document: dict[str, object], key: str, value: object) -> None:
    *tables, name = key.split(".")
    for table in tables:
        inner = document[table]
        assert isinstance(inner, dict)
        document = inner
    document[name] = value
