"""What settings mean that are unset or name a default: `run.toml` has it, so that a run keeps to it."""

from typing import Any

from mptui.config.keys import acts, training_of, value_of
from mptui.config.schema import RunConfig
from mptui.registry.names import SampleKind
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.own_code import is_own
from mptui.registry.tasks import TASKS
from mptui.registry.transforms import transforms_of

VIEWS = "data.augment"
FORMER_VIEWS = ["crop", "flip", "vertical_flip", "turn", "colour"]
"""What `default` meant for images with masks in versions that did not record it, but the last."""

_LEFT_TO_US = (None, "default")


def meanings(config: RunConfig, task: str) -> dict[str, Any]:
    """Return what is decided for settings that are unset or name a default, by `table.key`.

    They are those that a run learns by and that only code decides: what the device or the data decides is
    recorded where it is chosen.
    """
    spec = TASKS[task]
    decided = {f"training.{key}": v for key, v in OPTIMIZERS[config.training.optimizer].settings.items()}
    decided |= spec.unset
    if not is_own(config.model.task):
        decided["training.primary_metric"] = next(iter(spec.metrics))
    decided[VIEWS] = transforms_of("default", spec.sample)
    training = training_of(config, task)
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in decided.items()
        if value_of(config, key) in _LEFT_TO_US and acts(key, training)
    }


def is_former(config: RunConfig, task: str) -> bool:
    """Whether a run of an earlier version may have begun with `FORMER_VIEWS`."""
    return config.data.augment == "default" and TASKS[task].sample is SampleKind.MASK
