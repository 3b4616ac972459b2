"""Positions of a chart's cursor: steps for which a curve has a value, one per column."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mptui.tui.widgets.chart.plot import Series, step_range


def nearest(series: Sequence[Series], cell: int, width: int) -> float | None:
    """Return the step nearest to column `cell` of `width`; None if no curve has a value."""
    steps, cells = _places(series, width)
    return float(steps[np.abs(cells - cell).argmin()]) if steps.size else None


def moved(series: Sequence[Series], cursor: float | None, columns: int, width: int) -> float | None:
    """Return the step `columns` positions after `cursor` (before, if negative); without one, the latest."""
    steps, _ = _places(series, width)
    if not steps.size:
        return None
    place = steps.size - 1
    if cursor is not None:
        here = int(np.searchsorted(steps, cursor))
        # between two positions, e.g. after the axis has grown, the next one is the one to the right
        between = columns > 0 and (here == steps.size or steps[here] != cursor)
        place = min(max(here + columns - between, 0), steps.size - 1)
    return float(steps[place])


def _places(series: Sequence[Series], width: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the last step of each column that has one, and these columns."""
    x0, x1 = step_range(series)
    every = np.full((len(series) + 1, width), np.nan)
    for row, each in zip(every, series, strict=False):
        row[:] = each.history.steps(x0, x1, width)
    latest = np.fmax.reduce(every, axis=0)
    cells = np.flatnonzero(np.isfinite(latest))
    return latest[cells], cells
