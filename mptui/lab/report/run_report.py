"""What a report says of a run, read from its directory; the same for HTML and Markdown."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptui import format as fmt
from mptui.errors import MptuiError, RunDirectoryError
from mptui.regular import read_regular
from mptui.runs.store.directory import CONFIG, ENVIRONMENT, check_version, read_json, status_of
from mptui.runs.store.index import read_run
from mptui.runs.view.log_lines import metric_words
from mptui.runs.view.run_view import RunView
from mptui.text import clean, clean_lines

_LARGEST = 1 << 20
_PICTURES, _LARGEST_PICTURE = 2, 400_000
"""Number of pictures, the newest, and the largest size of one in bytes: the page stays small."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run for a report; all texts are safe to show.

    Attributes:
        name: Its name.
        view: Its curves, marks and log.
        facts: Label -> value, in the order of the page.
        events: Time of day and words of what happened.
        numerics: Rows of the last numerics probe, the headings first; empty without one.
        pictures: Name -> PNG.
        settings: run.toml.
        environment: environment.json.
    """

    name: str
    view: RunView
    facts: dict[str, str]
    events: list[tuple[str, str]]
    numerics: list[tuple[str, ...]]
    pictures: dict[str, bytes]
    settings: str
    environment: str


def read_report(run: Path) -> RunReport:
    """Read what a report says of the run in a directory.

    Raises:
        RunDirectoryError: It has no journal or settings, or is of a later version.
    """
    check_version(run)
    try:
        view = read_run(run)
        settings = clean_lines(read_regular(run / CONFIG, _LARGEST).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise RunDirectoryError(
            f"{run}: not a complete run: {error}", hint="choose another one: mptui runs"
        ) from error
    return RunReport(
        name=clean(run.name, 128),
        view=view,
        facts=_facts(status_of(run), view),
        events=[(fmt.clock(line.time, seconds=True), clean(line.text, 400)) for line in view.log],
        numerics=_numerics(view),
        pictures=_pictures(run, view),
        settings=settings,
        environment=clean_lines(json.dumps(read_json(run / ENVIRONMENT), indent=1)),
    )


def _facts(summary: dict[str, Any], view: RunView) -> dict[str, str]:
    precision, memory = summary.get("precision") or {}, summary.get("memory") or {}
    best, data, spent = summary.get("best") or {}, summary.get("dataset") or {}, summary.get("time") or {}
    value, forked = best.get("value"), summary.get("forked_from") or {}
    rate = summary.get("samples_per_second")
    facts = {
        "status": summary.get("status"),
        "fork of": f"{forked.get('run')} at step {forked.get('step')}" if forked else None,
        "task": summary.get("task"),
        "network": summary.get("model"),
        "data": data.get("name"),
        "training samples": data.get("train_samples"),
        "device": summary.get("device"),
        "precision": " · ".join(str(precision[key]) for key in ("used", "reason") if precision.get(key)),
        "best": f"{metric_words({best['metric']: value})[0]} in epoch {best.get('epoch')}"
        if isinstance(value, float)
        else None,
        "epochs": summary.get("epochs"),
        "optimizer steps": summary.get("optimizer_steps"),
        "skipped steps": summary.get("skipped_steps"),
        "images/s": f"{rate:,.1f}" if isinstance(rate, float) else None,
        "time": fmt.duration(spent["total_s"]) if isinstance(spent.get("total_s"), float) else None,
        **{
            words: fmt.size(memory[key]) if isinstance(memory.get(key), int) else None
            for words, key in _MEMORY.items()
        },
        "recoveries": "; ".join(_words(each, "kind", "action") for each in summary.get("recoveries") or []),
        "warnings": "; ".join(_words(each, "message") for each in summary.get("warnings") or []),
        "precision over time": ", ".join(f"{mark.label} at step {mark.step:,}" for mark in view.marks),
    }
    return {
        label: f"{told:,}" if isinstance(told, int) else clean(str(told), 2000)
        for label, told in facts.items()
        if told not in {None, ""}
    }


_MEMORY = {
    "peak memory, allocated": "peak_allocated_bytes",
    "peak memory, reserved": "peak_reserved_bytes",
    "peak memory of the host": "host_peak_bytes",
}


def _words(entry: object, *keys: str) -> str:
    return " ".join(str(entry[key]) for key in keys if entry.get(key)) if isinstance(entry, dict) else ""


def _numerics(view: RunView) -> list[tuple[str, ...]]:
    if view.numerics is None or not view.numerics.layers:
        return []
    rows: list[tuple[str, ...]] = [("layer", "part", "smallest", "largest", "lost in fp16")]
    for layer in view.numerics.layers:
        lost = fmt.percent(layer.lost)
        rows.append((layer.name, layer.part, fmt.figure(layer.smallest), fmt.figure(layer.largest), lost))
    return rows


def _pictures(run: Path, view: RunView) -> dict[str, bytes]:
    """Return the newest grids of images that a diffusion model has made."""
    if view.images is None or not view.images.path:
        return {}
    folder = (run / view.images.path).parent
    try:
        newest = sorted(folder.glob("epoch-*.png"), key=lambda path: (len(path.name), path.name))
        return {path.stem: read_regular(path, _LARGEST_PICTURE) for path in newest[-_PICTURES:]}
    except (OSError, MptuiError):
        return {}
