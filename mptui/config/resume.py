"""What a resume may be asked for: state comes from the checkpoint, settings from the configuration.

A setting that the state depends on stays as it was; to ask for another value is refused. All other settings
come into force with the resume.
"""

from collections.abc import Mapping
from typing import Any

from mptui.config.dump import values_of
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError

_WEIGHTS = "its weights fit no other network"
_SAMPLES = "the order of its samples and its validation set depend on it"

FIXED: Mapping[str, str] = {
    **dict.fromkeys(("model.name", "model.width", "model.depth", "model.up", "model.norm"), _WEIGHTS),
    "model.weights": "it goes on from its own weights",
    "training.optimizer": "the state of its optimizer fits no other",
    **dict.fromkeys(("training.seed", "data.name", "data.samples", "data.val_fraction"), _SAMPLES),
}
"""Settings that can't be another at a resume -> why."""


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[str]:
    """The settings (`table.key`) whose values differ, of those that both have (`values_of`)."""
    return frozenset(key for key in before.keys() & now.keys() if before[key] != now[key])


def check_resume(before: RunConfig, now: RunConfig) -> None:
    """Check that a run made with the settings `before` can be resumed with `now`.

    Raises:
        ConfigError: It can't: one line a setting.
    """
    had, asked = values_of(before), values_of(now)
    differing = changed(had, asked)
    faults = [
        f"{key} = {asked[key]}: this run has {had[key]}, and {why}"
        for key, why in FIXED.items()
        if key in differing
    ]
    if faults:
        hint = "resume without it, or start another run with it: mptui run"
        raise ConfigError("\n".join(faults), hint=hint)
