"""Reads the curves of runs from their journals, and finds their largest differences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

import numpy as np

from mptui.events import EpochFinished, RunStarted, Step, Validated
from mptui.runs.store.journal import read_journal

WINDOWS = 50
"""Largest number of equal windows that a training loss curve is divided into."""


@dataclass(slots=True)
class Curves:
    """The curves in a run's journal.

    `steps`: (last step, number of steps, mean loss) of each event; the others are by epoch. `metric`: name of
    the primary metric, a fraction of 1.
    """

    steps: list[tuple[int, int, float]] = field(default_factory=list)
    val_loss: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, float] = field(default_factory=dict)
    metric: str = ""
    final: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of a curve from FP32's: `value` is the precision's minus FP32's."""

    curve: str
    where: str
    value: float
    fp32: float


def read_curves(run: Path) -> Curves:
    """Read the curves of a run; steps repeated after a resume count once."""
    curves = Curves()
    for event in read_journal(run):
        if isinstance(event, RunStarted) and event.resumed_from_step is not None:
            resumed = event.resumed_from_step
            curves.steps = [step for step in curves.steps if step[0] <= resumed]
        elif isinstance(event, Step):
            curves.steps.append((event.step, event.steps, event.loss))
        elif isinstance(event, Validated) and event.metrics:
            curves.metric = next(iter(event.metrics))
            curves.val_loss[event.epoch] = event.loss
            curves.metrics[event.epoch] = event.metrics[curves.metric]
        elif isinstance(event, EpochFinished) and event.val_metrics:
            curves.final = event.val_metrics[next(iter(event.val_metrics))]
    return curves


def largest_gaps(ours: Sequence[Curves], theirs: Sequence[Curves]) -> list[Gap]:
    """Return the largest difference of each curve, between the means over the seeds.

    Args:
        ours: Curves of the precision, by seed.
        theirs: Curves of FP32, by the same seeds.
    """
    gaps = [
        _by_steps(ours, theirs),
        _by_epochs("validation loss", [c.val_loss for c in ours], [c.val_loss for c in theirs]),
        _by_epochs(ours[0].metric, [c.metrics for c in ours], [c.metrics for c in theirs]),
    ]
    return [gap for gap in gaps if gap is not None]


def _by_steps(ours: Sequence[Curves], theirs: Sequence[Curves]) -> Gap | None:
    curves = [*ours, *theirs]
    if not all(curve.steps for curve in curves):
        return None
    last = min(curve.steps[-1][0] for curve in curves)
    count = min(WINDOWS, last, *(len(curve.steps) for curve in curves))
    edges = np.linspace(0, last, count + 1)
    ours_mean, theirs_mean = (np.mean([_windowed(c, edges) for c in side], axis=0) for side in (ours, theirs))
    gap = ours_mean - theirs_mean
    at = int(np.argmax(np.where(np.isfinite(gap), np.abs(gap), inf)))
    first, end = int(edges[at]) + 1, int(edges[at + 1])
    where = f"steps {first} to {end}" if end > first else f"step {first}"
    return Gap("training loss", where, float(gap[at]), float(theirs_mean[at]))


def _windowed(curve: Curves, edges: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    """Return the mean loss between edges, interpolating the cumulative loss, as events end at any step."""
    ends = [0, *(step for step, _, _ in curve.steps)]
    sums = np.cumsum([0.0, *(steps * loss for _, steps, loss in curve.steps)])
    means: list[float] = (np.diff(np.interp(edges, ends, sums)) / np.diff(edges)).tolist()
    return means


def _by_epochs(name: str, ours: Sequence[dict[int, float]], theirs: Sequence[dict[int, float]]) -> Gap | None:
    """Return the largest difference by epoch; a difference that is not finite counts as the largest."""
    epochs = sorted(set.intersection(*(set(curve) for curve in (*ours, *theirs))))
    found: Gap | None = None
    for epoch in epochs:
        fp32 = sum(curve[epoch] for curve in theirs) / len(theirs)
        value = sum(curve[epoch] for curve in ours) / len(ours) - fp32
        if found is None or not isfinite(value) or abs(value) > abs(found.value):
            found = Gap(name, f"epoch {epoch}", value, fp32)
        if not isfinite(value):
            break
    return found
