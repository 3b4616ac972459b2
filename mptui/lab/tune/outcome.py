"""The result of a search: a configuration, and its evidence in sentences."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptui.config.schema import RunConfig
from mptui.lab.tune.search import Search, rivals_text, shown
from mptui.lab.tune.tunables import COMPILE, MICRO_BATCH
from mptui.runs.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class TuneCost:
    """The cost of a search: seconds and measured runs."""

    seconds: float
    runs: int


def settings(plan: Plan, search: Search) -> dict[str, object]:
    """Return the changes to the profile of `plan` (table.key -> value) that were measured to be better.

    Settings that were not measured, or within the noise, stay as in the profile.
    """
    chosen = {key: value for key, value in search.best.items() if value != search.start.get(key)}
    if MICRO_BATCH in search.start:  # the whole batch did not fit into memory
        chosen[MICRO_BATCH] = search.best[MICRO_BATCH]
    # the start is not compiled, even if the profile is: then eager must have been faster
    compile_mode = plan.config.speed.compile
    if COMPILE not in chosen and compile_mode != "off" and _has_lost(search, compile_mode):
        chosen[COMPILE] = "off"
    return chosen


def _has_lost(search: Search, mode: str) -> bool:
    """Whether compiling in this mode was measured and is slower than eager, or fails."""
    entries = [e for f in search.findings for e in f.entries if e.settings.get(COMPILE) == mode]
    return any(
        entry.failed is not None or (entry.over is not None and entry.over.verdict == "slower")
        for entry in entries
    )


def is_better(plan: Plan, search: Search) -> bool:
    """Whether the result is better in total: single gains may not add up."""
    return bool(settings(plan, search)) and (search.total is None or search.total.value > 1)


def tuned(plan: Plan, chosen: Mapping[str, object]) -> RunConfig:
    """Return the configuration of `plan` with the result, as a profile for this model and data."""
    tables: dict[str, dict[str, object]] = {}
    for key, value in chosen.items():
        table, name = key.split(".")
        tables.setdefault(table, {})[name] = value
    config = plan.config.model_copy(update={"data": plan.data_from_anywhere()})
    copies: dict[str, Any] = {
        table: getattr(config, table).model_copy(update=values) for table, values in tables.items()
    }
    return RunConfig.model_validate(config.model_copy(update=copies).model_dump())


def description(plan: Plan) -> str:
    """Return the description for lists of profiles."""
    config = plan.config
    return f"{config.model.name} at {config.data.image_size} px, as tuned on {plan.device.name}"


def evidence(plan: Plan, search: Search, effort: TuneCost, cpus: int) -> list[str]:
    """Return the measurements, one per line, for the head of the profile and the console."""
    import torch

    from mptui import __version__

    config = plan.config
    lines = [
        f"Measured by mptui tune {__version__} on {time.strftime('%Y-%m-%d')}: {plan.device.name}, "
        f"{cpus} CPUs, torch {torch.__version__}, Python {platform.python_version()}",
        f"{config.model.name} at {config.data.image_size} px on {config.data.path or config.data.name}, "
        f"batch {config.training.batch_size}, from profile {plan.resolved.profile}; {effort.runs} runs in "
        f"{effort.seconds / 60:.1f} minutes",
        "Figures: images/s relative to the current value then; median, 95 % interval, alternated rounds.",
    ]
    if search.total is not None:
        lines.append(f"In total: {shown(search.total, search.total_rounds)} as fast as the start")
    for finding in search.findings:
        verdict = "chosen" if finding.changed else "stays"
        lines.append(f"{finding.axis.name}: {finding.kept} {verdict}; {rivals_text(finding)}")
    if search.untried:
        lines.append(f"Not measured for lack of time, as in the profile: {', '.join(search.untried)}")
    return lines


def document(plan: Plan, search: Search, effort: TuneCost) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        "model": plan.config.model.name,
        "dataset": plan.config.data.path or plan.config.data.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "settings": settings(plan, search),
        "better": is_better(plan, search),
        "ratio": None if search.total is None else search.total.document,
        "ratio_rounds": search.total_rounds,
        "seconds": effort.seconds,
        "runs": effort.runs,
        "findings": [
            {
                "name": finding.axis.name,
                "before": finding.axis.current,
                "kept": finding.kept,
                "why": finding.why or None,
                "tried": [
                    {
                        "value": entry.name,
                        "settings": dict(entry.settings),
                        "ratio": None if entry.over is None else entry.over.document,
                        "verdict": None if entry.over is None else entry.over.verdict,
                        "rounds": [measured.samples_per_second for measured in entry.rounds],
                        "failed": entry.failed,
                    }
                    for entry in finding.entries
                ],
            }
            for finding in search.findings
        ],
        "untried": search.untried,
    }
