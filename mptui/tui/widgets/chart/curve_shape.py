"""The shape of a curve: its line, smoothed where values are noisy, and the band of the values behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mptui.runs.view.history import Columns, History

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SMOOTHING = 0.8
"""Weight of the moving average per dot column: high enough to show a trend, low enough to follow it."""

ENOUGH = 4
"""A band is drawn if at least one in so many columns has a value; over fewer, it would be made up."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric to draw.

    Attributes:
        label: Its name in the legend.
        history: Its values.
        dashed: Whether the line is dashed.
        noisy: Whether its line is the mean of a column, smoothed, with a band of all values behind it;
            otherwise the line covers all values.
        behind: Whether it is a quiet line behind the others, which alone determine the steps that are shown.
    """

    label: str
    history: History
    dashed: bool = False
    noisy: bool = False
    behind: bool = False


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps that a chart shows: `span` of them up to `end`, or up to the latest step if it is None."""

    span: float
    end: float | None = None


@dataclass(frozen=True, slots=True)
class CurveShape:
    """The lowest and highest value of the line in each column, and of the band; NaN: nothing is drawn."""

    line: tuple[Floats, Floats]
    band: tuple[Floats, Floats] | None = None

    @property
    def values(self) -> tuple[Floats, ...]:
        """All values that are drawn."""
        return (*self.line, *(self.band or ()))

    def tops(self, seen: Columns) -> Floats:
        """Return the highest point in each column that has values; NaN in others."""
        top = (self.band or self.line)[1]
        return np.where(np.isfinite(seen.low), top, np.nan)


def shape_of(series: Series, seen: Columns, smooth: bool) -> CurveShape:
    """Return the curve of a series in these columns."""
    low, high = bridged(seen.low, seen.broken), bridged(seen.high, seen.broken)
    if not series.noisy:
        return CurveShape((low, high))
    mean = bridged(seen.mean, seen.broken)
    if np.isfinite(seen.low).sum() * ENOUGH < seen.low.size:
        return CurveShape((mean, mean))
    line = smoothed(mean) if smooth else mean
    return CurveShape((line, line), None if series.behind else (low, high))


def bridged(values: Floats, broken: Mask) -> Floats:
    """Interpolate over columns without values; non-finite values of the run stay gaps."""
    known = np.isfinite(values)
    if known.sum() < 2:
        return values
    at = np.flatnonzero(known)
    columns = np.arange(values.size)
    filled = np.interp(columns, at, values[at], left=np.nan, right=np.nan)
    stretch = np.searchsorted(at, columns, side="right")
    torn = np.zeros(at.size + 1, dtype=np.bool_)
    torn[stretch[broken & ~known]] = True
    joined: Floats = np.where(torn[stretch] & ~known, np.nan, filled)
    return joined


def smoothed(values: Floats) -> Floats:
    """Return the moving average over the columns; gaps stay, and the average continues after them.

    It is the mean of two exponential averages, forwards and backwards, so that it doesn't lag behind.
    """
    smooth = np.full(values.size, np.nan)
    known = np.flatnonzero(np.isfinite(values))
    smooth[known] = (_averaged(values[known]) + _averaged(values[known][::-1])[::-1]) / 2
    return smooth


def _averaged(values: Floats) -> Floats:
    """Return the exponential average of each value and those before it."""
    means = accumulate(values.tolist(), lambda mean, value: SMOOTHING * mean + (1 - SMOOTHING) * value)
    return np.fromiter(means, np.float64, values.size)


def last_step(series: Sequence[Series]) -> float:
    """Return the last step for which any series has a value."""
    return max((s.history.end_x for s in series if s.history.version), default=0.0)


def first_step(series: Sequence[Series]) -> float:
    """Return the first step, 0 unless early steps are unknown (late resume)."""
    first = min((s.history.first_x for s in series if s.history.version), default=0.0)
    return 0.0 if first < last_step(series) / 10 else first
