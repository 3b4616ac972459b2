"""Checks the settings of a resume: state comes from the checkpoint, settings from the configuration.

A setting that the state depends on can't change; all others apply from the resume on.
"""

from collections.abc import Mapping
from typing import Any

from mptui.config.dump import values_of
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError

_WEIGHTS = "its weights fit no other network"
_SAMPLES = "the order of its samples and its validation set depend on it"
_FORMER = "bilinear"
"""The interpolation of runs that were made before it was recorded."""

FIXED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *(f"model.{key}" for key in ("name", "encoder", "width", "depth", "up", "norm")),
            "model.attention",
            "model.class_conditional",
        ),
        _WEIGHTS,
    ),
    "model.vae_sha256": "its network has learnt the latents of this VAE",
    "model.task": "its loss and its best epoch depend on it",
    "data.bands": _WEIGHTS.replace("network", "images"),
    **dict.fromkeys(("model.weights", "model.weights_key"), "it continues from its own weights"),
    "training.primary_metric": "its best checkpoint was chosen by it",
    "training.optimizer": "its optimizer state fits no other",
    **dict.fromkeys(("training.noise_schedule", "training.prediction"), "its network has learnt by it"),
    "data.interpolation": "its network learns images that were resampled so",
    **dict.fromkeys(
        ("training.seed", "data.name", "data.samples", "data.val_fraction", "data.split_seed"), _SAMPLES
    ),
}
"""Settings that can't change at a resume -> the reason."""


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings (`table.key`) in both (`values_of`) whose values differ."""
    return frozenset(key for key in before.keys() & now.keys() if before[key] != now[key])


def check_resume(before: RunConfig, now: RunConfig) -> None:
    """Check that a run with the settings `before` can be resumed with `now`.

    Raises:
        ConfigError: It can't: one line per setting.
    """
    had, asked = _compared(before), _compared(now)
    differing = changed(had, asked)
    if before.data.split_seed is now.data.split_seed is None:
        differing -= {"data.split_seed"}  # training.seed is told
    faults = [
        f"{key} = {asked[key]}: this run has {had[key]}, and {why}"
        for key, why in FIXED.items()
        if key in differing
    ]
    if faults:
        hint = "resume without it, or start a new run with it: mptui run"
        if before.data.interpolation is None and "data.interpolation" in differing:
            # chosen now by the pretrained weights, and not by the person
            hint = f"resume it with --set data.interpolation={_FORMER}"
        raise ConfigError("\n".join(faults), hint=hint)


def _compared(config: RunConfig) -> dict[str, Any]:
    """Return the values of each key, with what runs of earlier versions have where they record nothing."""
    former = {
        "data.interpolation": config.data.interpolation or _FORMER,
        "data.split_seed": config.split_seed,
    }
    return values_of(config) | former
