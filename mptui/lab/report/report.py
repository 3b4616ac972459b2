"""What a report says of a run, read from its directory; the same for HTML and Markdown."""

import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mptui import format as fmt
from mptui.errors import RunDirectoryError
from mptui.lab.report import run_sections as sections
from mptui.lab.report.run_sections import Facts, Table
from mptui.lab.report.timeline_lanes import time_by_state
from mptui.regular import read_regular
from mptui.runs.listing.forking import parent_words
from mptui.runs.store.directory import (
    CHECKPOINTS,
    CHOICES,
    CONFIG,
    ENVIRONMENT,
    RANKS,
    check_version,
    read_json,
    status_of,
)
from mptui.runs.store.index import read_run
from mptui.runs.view.history import SLICES
from mptui.runs.view.log_lines import metric_words
from mptui.runs.view.run_view import RunView
from mptui.text import clean, clean_lines

_LARGEST = 1 << 20
_NEWEST = 2
"""Number of pictures of each folder of a run."""
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run for a report; all texts are safe to show.

    Attributes:
        name: Its name.
        view: Its curves, marks, timeline and log.
        facts: Label -> value, in the order of the page.
        time: State -> time in it.
        precision: The precisions in use one after the other.
        scale: Facts of the loss scale.
        memory: Facts of the memory.
        numerics: The layers of the last numerics probe.
        numerics_words: A sentence on that probe.
        classes: Metrics by class of the last validation.
        events: Time of day and words of what happened.
        pictures: Name -> PNG.
        settings: run.toml.
        documents: Title -> text of other files.
    """

    name: str
    view: RunView
    facts: Facts
    time: Facts
    precision: Table
    scale: Facts
    memory: Facts
    numerics: Table
    numerics_words: str
    classes: Table
    events: list[tuple[str, str]]
    pictures: dict[str, bytes]
    settings: str
    documents: dict[str, str]


def read_report(run: Path, picture_bytes: int) -> RunReport:
    """Read what a report says of the run in a directory.

    Args:
        run: The run directory.
        picture_bytes: Largest size of all its pictures, which keeps the page small.

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
    summary = status_of(run)
    return RunReport(
        name=clean(run.name, 128),
        view=view,
        facts=_facts(run, summary, view),
        time=time_by_state(view.timeline.columns(SLICES)),
        precision=sections.precision_history(view),
        scale=sections.scale_facts(view),
        memory=sections.memory_facts(summary, view),
        numerics=sections.numerics_rows(view),
        numerics_words=sections.numerics_words(view),
        classes=sections.class_rows(view),
        events=[(fmt.clock(line.time, seconds=True), clean(line.text, 400)) for line in view.log],
        pictures=_pictures(run, picture_bytes),
        settings=settings,
        documents={
            title: clean_lines(json.dumps(found, indent=1))
            for title, name in {"Environment": ENVIRONMENT, "Measured choices": CHOICES}.items()
            if (found := read_json(run / name))
        },
    )


def _facts(run: Path, summary: dict[str, Any], view: RunView) -> Facts:
    precision, energy = summary.get("precision") or {}, summary.get("energy") or {}
    best, data, spent = summary.get("best") or {}, summary.get("dataset") or {}, summary.get("time") or {}
    value, waited = best.get("value"), spent.get("data_wait_fraction")
    rate, cost = summary.get("samples_per_second"), summary.get("cost")
    facts = {
        "status": summary.get("status"),
        "fork of": parent_words(run, summary),
        "task": summary.get("task"),
        "network": summary.get("model"),
        "data": data.get("name"),
        "training samples": data.get("train_samples"),
        "device": summary.get("device"),
        "precision": " · ".join(str(precision[key]) for key in ("used", "reason") if precision.get(key)),
        "best": f"{metric_words({best['metric']: value})[0]} in epoch {best.get('epoch')}"
        if isinstance(value, int | float) and best.get("metric")
        else None,
        "epochs": summary.get("epochs"),
        "optimizer steps": summary.get("optimizer_steps"),
        "skipped steps": summary.get("skipped_steps"),
        "images/s": f"{rate:,.1f}" if isinstance(rate, float) else None,
        "waiting for data": fmt.percent(waited) if isinstance(waited, float) else None,
        "time": fmt.duration(spent["total_s"]) if isinstance(spent.get("total_s"), float) else None,
        "energy": f"{energy['watt_hours']:,.1f} Wh" if isinstance(energy.get("watt_hours"), float) else None,
        "cost": f"{cost:,.2f}" if isinstance(cost, float) else None,
        "recoveries": "; ".join(_words(each, "kind", "action") for each in summary.get("recoveries") or []),
        "warnings": "; ".join(_words(each, "message") for each in summary.get("warnings") or []),
        "changes": ", ".join(f"{mark.label} at step {mark.step:,}" for mark in view.marks),
    }
    return {  # what a summary made by hand has instead of a text or a number is left out
        label: f"{told:,}" if isinstance(told, int) else clean(str(told), 2000)
        for label, told in facts.items()
        if isinstance(told, str | int | float) and told != ""
    }


def _words(entry: object, *keys: str) -> str:
    return " ".join(str(entry[key]) for key in keys if entry.get(key)) if isinstance(entry, dict) else ""


def _pictures(run: Path, most: int) -> dict[str, bytes]:
    """Return the newest pictures in the folders of a run, newest first, as far as `most` bytes go."""
    found: dict[str, bytes] = {}
    for folder in sorted(run.iterdir()):
        if folder.name in {CHECKPOINTS, RANKS} or folder.is_symlink() or not folder.is_dir():
            continue
        named = sorted(folder.glob("*.png"), key=lambda path: (len(path.name), path.name), reverse=True)
        pngs = ((path, png) for path in named if (png := _png(path, most)))
        for path, png in islice(pngs, _NEWEST):
            most -= len(png)
            found[clean(f"{folder.name}, {path.stem}", 100)] = png
    return found


def _png(path: Path, limit: int) -> bytes:
    """Read a PNG file; b"" if it is none, or larger than `limit`."""
    try:
        content = read_regular(path, limit, os.O_NOFOLLOW)
    except OSError:
        return b""
    return content if content.startswith(_PNG) else b""
