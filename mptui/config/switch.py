"""Another preset in the middle of a run: what it may change, and what stays as the run began.

Weights, optimizer, the place in the schedule and in the data carry over, so what they depend on can't change.
"""

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


def switched(current: RunConfig, preset: RunConfig) -> tuple[RunConfig, dict[str, list[str]], list[str]]:
    """Put `preset` in force over `current`.

    Returns:
        The new configuration, what changes (table.key -> old and new as text), and the keys in which the
        preset differs but which can't change in a run.

    Raises:
        ConfigError: What the preset changes can't be had with what stays.
    """
    document = current.model_dump()
    changes: dict[str, list[str]] = {}
    kept: list[str] = []
    same_optimizer = current.training.optimizer == preset.training.optimizer
    for key in SETTINGS:
        old, new = value_of(current, key), value_of(preset, key)
        if old == new:
            continue
        if (
            key.startswith(_TAKEN_TABLES)
            or key in _TAKEN_KEYS
            or (same_optimizer and key in _OF_THE_OPTIMIZER)
        ):
            _set(document, key, new)
            changes[key] = [str(old), str(new)]
        elif not key.startswith(("model.", "data.", "hardware.")):
            kept.append(key)
    document["description"] = preset.description
    try:
        return RunConfig.model_validate(document), changes, kept
    except ValidationError as error:
        faults = [line for each in error.errors() for line in str(each["ctx"]["error"]).splitlines()]
    told = "; ".join(faults)
    raise ConfigError(f"the preset can't be taken in this run: {told}", hint="switch to another preset")


def _set(document: dict[str, object], key: str, value: object) -> None:
    *tables, name = key.split(".")
    for table in tables:
        inner = document[table]
        assert isinstance(inner, dict)
        document = inner
    document[name] = value
