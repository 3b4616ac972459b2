"""Lists the summaries of runs, and compares runs."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli

from mptui.errors import RunDirectoryError
from mptui.regular import read_regular
from mptui.runs.store import journal
from mptui.runs.store.directory import (
    CONFIG,
    ENVIRONMENT,
    LARGEST,
    check_version,
    list_runs,
    read_json,
    started_of,
    status_of,
)
from mptui.runs.store.index import read_run
from mptui.runs.view.view_state import EPOCHS_KEPT
from mptui.text import clean

SILENT_S = 60.0
"""Seconds without an event after which a running run is listed as silent; one per second is normal."""

_ENVIRONMENT = ("platform", "python", "cuda", "driver", "git_commit", "processors", "torch_threads")

_FIGURES = {
    "status": ("status",),
    "device": ("device",),
    "precision": ("precision", "used"),
    "epochs": ("epochs",),
    "optimizer_steps": ("optimizer_steps",),
    "skipped_steps": ("skipped_steps",),
    "best_epoch": ("best", "epoch"),
    "best_metric": ("best", "metric"),
    "best_value": ("best", "value"),
    "ranks": ("ranks",),
    "samples_per_second": ("samples_per_second",),
    "total_s": ("time", "total_s"),
    "first_step_s": ("time", "first_step_s"),
    "data_wait_fraction": ("time", "data_wait_fraction"),
    "peak_allocated_bytes": ("memory", "peak_allocated_bytes"),
    "peak_reserved_bytes": ("memory", "peak_reserved_bytes"),
    "host_peak_bytes": ("memory", "host_peak_bytes"),
}


def summaries(folder: Path, on_error: Callable[[OSError], None] = lambda _: None) -> list[dict[str, Any]]:
    """Return the summary of each run, in the order of their start.

    `silent_s` is set for a running run without recent events.

    Args:
        folder: The folder of all runs.
        on_error: Called for each folder that can't be read.
    """
    found = []
    for run in list_runs(folder, on_error):
        summary = status_of(run)
        if summary["status"] == "running" and (silent := _silence(run)) > SILENT_S:
            summary["silent_s"] = round(silent)
        found.append((started_of(run, summary), run.name, summary))
    return [summary for *_, summary in sorted(found, key=lambda each: each[:2])]


def compare(runs: Sequence[Path]) -> dict[str, Any]:
    """Compare runs; each entry is a list with a value for each of them.

    `settings`: differing values of run.toml, None if a run has none; `environment`: differing versions, and
    commits; `figures`: values of summary.json; `curves`: losses and metrics by epoch, by name.

    Raises:
        RunDirectoryError: The configuration of one can't be read, or it is of a later version.
    """
    for run in runs:
        check_version(run)
    settings = [_settings(run) for run in runs]
    figures = [_figures(status_of(run)) for run in runs]
    curves = [_curves(run) for run in runs]
    return {
        "runs": [run.name for run in runs],
        "directories": [str(run) for run in runs],
        "settings": _differing(settings),
        "environment": _differing([_environment(run) for run in runs]),
        "figures": _side_by_side(figures, None),
        "curves": _side_by_side(curves, []),
    }


def _differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each key that are not the same in all tables."""
    both = _side_by_side(tables, None)
    return {key: values for key, values in both.items() if any(value != values[0] for value in values)}


def _side_by_side(tables: Sequence[Mapping[str, Any]], missing: object) -> dict[str, list[Any]]:
    """Return the values of each key that any of the tables has."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: [table.get(key, missing) for table in tables] for key in keys}


def _silence(run: Path) -> float:
    try:
        return time.time() - os.stat(run / journal.NAME).st_mtime  # noqa: PTH116 - as the journal's writer does
    except OSError:
        return 0.0


def _settings(run: Path) -> dict[str, Any]:
    """Return run.toml as table.key -> value."""
    try:
        document = tomli.loads(read_regular(run / CONFIG, LARGEST).decode())
        for name in ("version", "description"):
            document.pop(name, None)
        return dict(_flat("", document))
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(
            f"{run / CONFIG}: {error}", hint="choose two complete runs; mptui runs lists them"
        ) from None


def _environment(run: Path) -> dict[str, Any]:
    """Return versions and commit of environment.json; empty without one."""
    found = read_json(run / ENVIRONMENT)
    packages = found.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    known = {**{name: found.get(name) for name in _ENVIRONMENT}, **versions}
    return {clean(name): clean(str(value)) for name, value in known.items() if value is not None}


def _flat(prefix: str, table: dict[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        flat += _flat(f"{prefix}{key}.", value) if isinstance(value, dict) else [(clean(prefix + key), value)]
    return flat


def _figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the summary: final loss and metrics, then the others."""
    final = summary.get("final")
    figures = (
        {f"final_{clean(name)}": value for name, value in final.items()} if isinstance(final, dict) else {}
    )
    for name, path in _FIGURES.items():
        value: Any = summary
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        figures[name] = clean(value) if isinstance(value, str) else value
    return figures


def _curves(run: Path) -> dict[str, list[float]]:
    """Return losses and metrics by epoch; for very many epochs, means of neighbouring ones."""
    try:
        by_epoch = read_run(run).by_epoch
    except OSError:
        return {}
    return {name: history.tail(EPOCHS_KEPT).tolist() for name, history in by_epoch.items()}
