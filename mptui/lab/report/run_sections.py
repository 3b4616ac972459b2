"""Tables of a report: precision over time, loss scale, memory, numerics, classes.

The first row of a table is its heading.
"""

from itertools import groupby
from typing import Any

import numpy as np

from mptui import format as fmt
from mptui.events import NumericsLayer
from mptui.runs.view.history import SLICES
from mptui.runs.view.labels import shown
from mptui.runs.view.log_lines import numerics_advice
from mptui.runs.view.run_view import RunView
from mptui.text import clean

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
    heading = ("layer", "part", "smallest", "largest", "lost in fp16", "without a scale")
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
        f"; {event.others:,} more layers lose up to {fmt.percent(event.others_lost)}" if event.others else ""
    )
    return f"Step {event.step:,} in {event.precision}: {numerics_advice(event)}{others}."


def class_rows(view: RunView) -> Table:
    """Return the metrics of the last validation by class."""
    found = view.validation.per_class if view.validation is not None else {}
    names = list(found)
    classes = list(dict.fromkeys(name for values in found.values() for name in values))[:_CLASSES]
    rows = [(clean(each, 80), *(_metric(name, found[name].get(each)) for name in names)) for each in classes]
    return [("class", *(shown(name).word or name for name in names)), *rows] if rows else []


def _metric(name: str, value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return fmt.UNKNOWN
    return fmt.percent(value) if shown(name).fraction else fmt.figure(value)
