"""Where the settings of a run came from as it began: kept beside what was measured for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptui.config.keys import SETTINGS, check_value
from mptui.config.resolve import Resolved, values_of
from mptui.runs.store.directory import CHOICES, read_json

_SETTINGS = "settings"
BY_BUDGET = "chosen: memory.budget_gib"
"""Source of a setting that a limit on memory decides, which is chosen anew under other settings."""
_CHOSEN = ("chosen", "default of ")
"""Beginnings of the sources of values that were chosen for this very run."""


def sources_document(resolved: Resolved) -> dict[str, Any]:
    """Return each setting that is not the schema's default with its source, by `table.key`, for a file."""
    values = values_of(resolved.config)
    found = {key: source for key, source in resolved.sources.items() if source != "default"}
    return {_SETTINGS: {key: {"value": values[key], "source": source} for key, source in found.items()}}


def kept_sources(run: Path) -> dict[str, Any]:
    """Return what `sources_document` has returned as the run began; empty if it is missing or damaged."""
    found = read_json(run / CHOICES).get(_SETTINGS)
    return {_SETTINGS: found} if isinstance(found, dict) else {}


def chosen_at_start(run: Path) -> dict[str, tuple[Any, str]]:
    """Return value and source, by `table.key`, of what its data, network or weights chose as a run began.

    Args:
        run: The run directory.
    """
    chosen = {}
    for key, kept in kept_sources(run).get(_SETTINGS, {}).items():
        source = kept.get("source") if isinstance(kept, dict) else None
        if key in SETTINGS and isinstance(source, str) and _is_choice(source):
            value, wrong = check_value(SETTINGS[key], kept.get("value"))
            if not wrong:
                chosen[key] = value, source
    return chosen


def _is_choice(source: str) -> bool:
    return source.startswith(_CHOSEN) and source != BY_BUDGET


def read_sources(run: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """Return where the settings of a run came from, by `table.key`.

    Args:
        run: The run directory.
        values: The settings in force (`values_of`): one that was changed since has no source here.
    """
    found = kept_sources(run).get(_SETTINGS, {})
    sources = {
        key: kept["source"]
        for key, kept in found.items()
        if isinstance(kept, dict) and isinstance(kept.get("source"), str) and key in values
        if kept.get("value") == values[key]
    }
    measured = read_json(run / CHOICES).get("precision")
    if isinstance(measured, dict) and values.get("precision.mode") == "auto":
        used, reason = measured.get("used"), measured.get("reason")
        if isinstance(used, str) and isinstance(reason, str):
            sources["precision.mode"] = f"chosen: {used}, {reason}"
    return sources
