"""Positions of a chart's cursor: steps for which a curve has a value, one per column."""

import numpy as np
from numpy.typing import NDArray

from mptui.tui.widgets.chart.plot import Plot


def nearest(plot: Plot, cell: int, width: int) -> float | None:
    """Return the step nearest to column `cell` of `width`; None if no curve has a value."""
    steps, cells = _places(plot, width)
    return float(steps[np.abs(cells - cell).argmin()]) if steps.size else None


def moved(plot: Plot, cursor: float | None, columns: int, width: int) -> float | None:
    """Return the step `columns` positions after `cursor` (before, if negative); without one, the latest."""
    steps, _ = _places(plot, width)
    if not steps.size:
        return None
    place = steps.size - 1
    if cursor is not None:
        here = int(np.searchsorted(steps, cursor))
        # between two positions, e.g. after the axis has grown, the next one is the one to the right
        between = columns > 0 and (here == steps.size or steps[here] != cursor)
        place = min(max(here + columns - between, 0), steps.size - 1)
    return float(steps[place])


def _places(plot: Plot, width: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the last step of each column that has one, and these columns."""
    x0, x1 = plot.steps
    every = np.full((len(plot.own) + 1, width), np.nan)
    for row, each in zip(every, plot.own, strict=False):
        row[:] = each.history.steps(x0, x1, width)
    latest = np.fmax.reduce(every, axis=0)
    cells = np.flatnonzero(np.isfinite(latest))
    return latest[cells], cells
