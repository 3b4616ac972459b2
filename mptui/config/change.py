"""What a resume and a switch during a run may change, and which values stay."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from mptui.config.keys import SETTINGS, said, value_of, with_values
from mptui.config.resolve import Resolved, values_of
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError
from mptui.registry.optimizers import OPTIMIZERS

# Switches a running run to another profile: which settings change, and which keep their values
# ---------------------------------------------------------------------------------------------
# Weights, optimizer state and the positions in schedule and data carry over, so the settings that they
# depend on can't change: the schema says beside each key whether it can (`Live`).


@dataclass(frozen=True, slots=True)
class Switched:
    """The result of a switch to another profile.

    Attributes:
        config: The new configuration.
        changes: table.key -> old and new, as text.
        kept: The keys in which the profile differs but that can't change -> the reason if it concerns this
            run only, "" if they can never change during a run.
    """

    config: RunConfig
    changes: dict[str, list[str]]
    kept: dict[str, str]


CHOSEN_BATCH = ("training.batch_size", "training.lr_batch_size", "training.lr_scaling")
"""What is chosen together for few images."""
RECIPE_OF_BATCH = (*CHOSEN_BATCH, "training.lr", "training.accumulate")
"""What has a batch of its own where a profile names any of it."""


def with_chosen(profile: Resolved, chosen: Mapping[str, tuple[Any, str]]) -> Resolved:
    """Return a profile to switch to, with what was chosen for the run as it began.

    Its data, network and weights stay, so what the profile leaves open takes what they need.

    Args:
        profile: The profile with what the person has set.
        chosen: `table.key` -> value and source.
    """
    has_batch = any(profile.sources[key].startswith("profile ") for key in RECIPE_OF_BATCH)
    kept = {
        key: choice
        for key, choice in chosen.items()
        if SETTINGS[key].live and profile.sources[key].startswith("default")
        if not (has_batch and key in CHOSEN_BATCH)
    }
    config = with_values(profile.config, {key: value for key, (value, _) in kept.items()})
    sources = profile.sources | {key: source for key, (_, source) in kept.items()}
    return replace(profile, config=config, sources=sources)


def switched(current: RunConfig, profile: RunConfig) -> Switched:
    """Apply `profile` to `current`, except for settings that can't change during a run.

    Raises:
        ConfigError: The settings that change conflict with those that can't.
    """
    wanted, kept = _wanted(current, profile)
    while True:
        document = current.model_dump()
        document["description"] = profile.description
        for key in wanted:
            _set(document, key, value_of(profile, key))
        try:
            config = RunConfig.model_validate(document)
        except ValidationError as error:
            faults = [line for each in error.errors() for line in str(each["ctx"]["error"]).splitlines()]
        else:
            changes = {key: [said(value_of(current, key)), said(value_of(profile, key))] for key in wanted}
            return Switched(config, changes, kept)
        # settings that can't change rule out some of the profile's: these keep their values, too
        ruled_out = {key: fault for fault in faults for key in wanted if _names(fault, key)}
        if not ruled_out:
            raise ConfigError(
                f"this run can't switch to the profile: {'; '.join(faults)}", hint="choose another profile"
            )
        wanted = [key for key in wanted if key not in ruled_out]
        kept |= ruled_out


def fixed_because(key: str) -> str:
    """Return why a single setting can't change during a run; "" if it can."""
    setting = SETTINGS[key]
    return "" if setting.live else setting.fixed or f"a resume can change it: mptui resume RUN --set {key}=…"


def switched_setting(current: RunConfig, key: str, value: object) -> Switched:
    """Change a single setting of `current`.

    Raises:
        ConfigError: It can't change during a run, or conflicts with the others: the reason.
    """
    document = current.model_dump()
    _set(document, key, value)
    try:
        switch = switched(current, RunConfig.model_validate(document))
    except ValidationError as error:
        fault = "\n".join(str(each["ctx"]["error"]) for each in error.errors())
        raise ConfigError(fault, hint="choose another value") from error
    if why := fixed_because(key) or switch.kept.get(key):
        raise ConfigError(why, hint="choose another setting")
    return switch


def _wanted(current: RunConfig, profile: RunConfig) -> tuple[list[str], dict[str, str]]:
    """Split the keys in which `profile` differs into those that can change during a run and the others."""
    same_optimizer = current.training.optimizer == profile.training.optimizer
    wanted, kept = [], {}
    for key in SETTINGS:
        if _in_force(current, key) == _in_force(profile, key):
            continue
        live = SETTINGS[key].live
        if live is not None and (same_optimizer or not live.one_optimizer):
            wanted.append(key)
        elif not key.startswith(("model.", "data.", "hardware.", "code.")):
            kept[key] = ""
    return wanted, kept


def _in_force(config: RunConfig, key: str) -> object:
    """Return the value of a key; where it is unset, that which the optimizer takes instead."""
    value = value_of(config, key)
    table, _, name = key.partition(".")
    if value is None and table == "training":
        spec = OPTIMIZERS.get(config.training.optimizer)
        value = None if spec is None else spec.settings.get(name)
    return list(value) if isinstance(value, tuple) else value


def _names(fault: str, key: str) -> bool:
    """Whether a fault of the schema names this key, and not only a longer one."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", fault) is not None


def _set(document: dict[str, object], key: str, value: object) -> None:
    *tables, name = key.split(".")
    for table in tables:
        inner = document[table]
        assert isinstance(inner, dict)
        document = inner
    document[name] = value


# Checks the settings of a resume: state comes from the checkpoint, settings from the configuration
# -------------------------------------------------------------------------------------------------
# A setting that the state depends on can't change (`Fixed`); all others apply from the resume on.

_FORMER = "bilinear"
"""The interpolation of runs that were made before it was recorded."""


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
        f"{key} = {asked[key]}: this run has {had[key]}, and {setting.fixed}"
        for key, setting in SETTINGS.items()
        if key in differing and setting.fixed
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
