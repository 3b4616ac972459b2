"""What a report says of a run, read from its directory; the same for HTML and Markdown."""

import json
import os
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from mptui import text as fmt
from mptui.errors import RunDirectoryError
from mptui.events import NumericsLayer
from mptui.io.files import read_regular
from mptui.lab.report.pictures import time_by_state
from mptui.registry.tasks import metric_spec, metric_word
from mptui.runs.listing.forks import parent_words
from mptui.runs.store.directory import (
    CHECKPOINTS,
    CHOICES,
    CONFIG,
    ENVIRONMENT,
    RANKS,
    check_version,
    read_json,
    status_of,
    time_of,
)
from mptui.runs.store.index import read_run
from mptui.runs.view.history import SLICES
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import (
    WOULD_BE_LOST,
    metric_words,
    numerics_advice,
    profile_words,
    steps_words,
    time_words,
)
from mptui.text import clean, clean_lines

# Tables of a report: precision over time, loss scale, memory, numerics, classes
# ------------------------------------------------------------------------------
# The first row of a table is its heading.

Facts = dict[str, str]
Table = list[tuple[str, ...]]

_CLASSES = 200
"""Largest number of classes in the table of a validation."""


def precision_history(view: RunView) -> Table:
    """Return the precisions in use one after the other, with their steps, time and skipped steps."""
    columns = view.timeline.columns(SLICES)
    seconds = columns.seconds.sum(axis=0)
    rows: Table = []
    first, before = 0, 0
    for name, equal in groupby(columns.precision):
        last = first + sum(1 for _ in equal)
        moment = view.timeline.moment_in(last - 1, SLICES)
        step = before if moment is None else moment.step
        if name:
            rows.append(
                (
                    name,
                    f"{before:,} to {step:,}",
                    fmt.duration(float(seconds[first:last].sum())),
                    f"{columns.skipped[first:last].sum():,.0f}",
                )
            )
        first, before = last, step
    return [("precision", "steps, about", "time", "skipped"), *rows] if rows else []


def branch_rows(view: RunView) -> Table:
    """Return the branches of a run, the oldest first; empty if it has left none."""
    heading = ("begins after step", "last step", "end", "best up to there")
    rows = [branch.words for branch in (*view.branches, view.branch())]
    return [heading, *rows] if view.branches else []


def scale_facts(view: RunView) -> Facts:
    """Return what the loss scale did; empty without one."""
    scale = view.loss_scale
    if scale is None:
        return {}
    return {
        "last": f"{scale.scale:,.0f}",
        "range": f"{scale.lowest:,.0f} to {scale.highest:,.0f}",
        "growths": f"{scale.growths:,}",
        "backoffs": f"{scale.backoffs:,}",
        "skipped steps": f"{scale.skipped:,} ({100 * scale.skip_rate:.2f} %), at most "
        f"{scale.longest_streak:,} in a row",
    }


def memory_facts(summary: dict[str, Any], view: RunView) -> Facts:
    """Return the peaks of memory, and what torch's allocator held at the last sample."""
    peaks, sample, device = summary.get("memory") or {}, view.memory, view.device
    sizes = {
        "peak, allocated": peaks.get("peak_allocated_bytes") or (sample.peak if sample else None),
        "peak, reserved by torch": peaks.get("peak_reserved_bytes"),
        "reserved at the last sample": sample.reserved if sample else None,
        "free parts of blocks in use": sample.gaps if sample else None,
        "peak of the host's memory": peaks.get("host_peak_bytes"),
        "used on the device, by all": device.memory_used if device else None,
        "memory of the device": device.memory_total if device else None,
    }
    return {label: fmt.size(size) for label, size in sizes.items() if isinstance(size, int | float)}


def numerics_rows(view: RunView) -> Table:
    """Return the layers of the last numerics probe, worst first."""
    if view.numerics is None or not view.numerics.layers:
        return []
    lost = "lost in fp16" if view.numerics.precision == "fp16" else WOULD_BE_LOST
    heading = ("layer", "part", "smallest", "largest", lost, "without a scale")
    return [heading, *map(_numerics_row, view.numerics.layers)]


def _numerics_row(layer: NumericsLayer) -> tuple[str, ...]:
    shares = (layer.lost, layer.lost_unscaled)
    extremes = fmt.figure(layer.smallest), fmt.figure(layer.largest)
    return layer.name, layer.part, *extremes, *map(fmt.percent, shares)


def numerics_words(view: RunView) -> str:
    """Return what the last probe is about, and which loss scale would be best; "" without a probe."""
    event = view.numerics
    if event is None:
        return ""
    others = (
        f"; {event.others:,} more layers lose up to {fmt.percent(event.others_lost)} in fp16"
        if event.others
        else ""
    )
    return f"Step {event.step:,} in {event.precision}: {numerics_advice(event)}{others}."


def class_rows(view: RunView) -> Table:
    """Return the metrics of the last validation by class."""
    found = view.validation.per_class if view.validation is not None else {}
    names = list(found)
    classes = list(dict.fromkeys(name for values in found.values() for name in values))[:_CLASSES]
    rows = [(clean(each, 80), *(_metric(name, found[name].get(each)) for name in names)) for each in classes]
    return [("class", *(metric_word(name) for name in names)), *rows] if rows else []


def _metric(name: str, value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return fmt.UNKNOWN
    return fmt.percent(value) if metric_spec(name).fraction else fmt.figure(value)


# What a report says of a run, read from its directory; the same for HTML and Markdown
# ------------------------------------------------------------------------------------

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
        branches: The branches that the run has left and the one in force; empty if it has left none.
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
    branches: Table
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
        branches=branch_rows(view),
        precision=precision_history(view),
        scale=scale_facts(view),
        memory=memory_facts(summary, view),
        numerics=numerics_rows(view),
        numerics_words=numerics_words(view),
        classes=class_rows(view),
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
    value, waited, steps = best.get("value"), spent.get("data_wait_fraction"), summary.get("optimizer_steps")
    session_s, total_s = time_of(summary)
    rate, cost = summary.get("samples_per_second"), summary.get("cost")
    facts = {
        "state": summary.get("status"),
        "fork of": parent_words(run, summary),
        "profile": profile_words(summary.get("profile", ""), summary.get("changed", ())),
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
        "optimizer steps": steps_words(steps, summary.get("total_steps")) if isinstance(steps, int) else None,
        "images seen": summary.get("samples_seen"),
        "skipped steps": summary.get("skipped_steps"),
        "images/s": f"{rate:,.1f}" if isinstance(rate, float) else None,
        "waiting for data": fmt.percent(waited) if isinstance(waited, float) else None,
        "time of the last session" if total_s is None else "time": time_words(session_s, total_s)
        if session_s is not None
        else None,
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
        is_folder = folder.is_dir() and not folder.is_symlink()
        if not is_folder or folder.name in {CHECKPOINTS, RANKS}:
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
