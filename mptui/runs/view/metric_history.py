"""The history of one metric, in constant memory for a run of any length.

Values are stored in buckets over the step axis. When the last bucket is full, neighbours are merged in pairs
and each bucket covers twice as many steps: two thousand buckets hold a thousand steps or ten million. A
bucket has the smallest and the largest value beside the sum, so that a spike of one step never disappears.
"""

import base64
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CAPACITY = 2048
"""Number of buckets: several per dot of the widest chart, even just after a merge."""

POINTS = 8
"""An axis leaves out no value of curves with fewer values than these."""

OUTLIERS = 0.02
"""Share of the values of a curve that an axis may leave out, at least one; never the latest."""

OUTLYING = 5
"""The axis leaves them out if it would be so many times as long with them as without."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A history resampled to columns; NaN in columns without a finite value.

    `broken` marks columns in which a value was NaN or infinite.
    """

    low: Floats
    high: Floats
    mean: Floats
    broken: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """A history for a file; `buckets` are its arrays as little-endian float64 in base64."""

    origin: float | None
    width: int
    last: float
    last_x: float
    end_x: float
    version: int
    buckets: str


class History:
    """The values of one metric over the steps of a run, read as columns of a chart.

    Args:
        capacity: Number of buckets, even.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._origin: float | None = None
        self._width = 1
        self._end = 0
        self._low = np.full(capacity, np.nan)
        self._high = np.full(capacity, np.nan)
        self._sum = np.zeros(capacity)
        self._count = np.zeros(capacity)
        self._broken = np.zeros(capacity)
        self._open = -1
        self._open_low, self._open_high = math.inf, -math.inf
        self._open_sum, self._open_count, self._open_broken = 0.0, 0, 0
        self.version = 0
        self.last = math.nan
        self.last_x = self.end_x = 0.0

    def append(self, x: float, y: float, low: float | None = None, high: float | None = None) -> None:
        """Append a value at step `x`; `low` and `high` are the extremes of the values it represents.

        Steps usually increase; after a rollback, a value is merged into the bucket of its step.
        """
        self.version += 1
        self.last, self.last_x = y, x
        if x > self.end_x:
            self.end_x = x
        index = self._index(x)
        if index != self._open:
            self._seal()
            self._open = index
        if not math.isfinite(y):
            self._open_broken += 1
            return
        self._open_count += 1
        self._open_sum += y
        low, high = y if low is None else low, y if high is None else high
        if low < self._open_low:
            self._open_low = low
        if high > self._open_high:
            self._open_high = high

    def forget_after(self, x: float) -> None:
        """Drop values after step `x`, as a run that continues from there repeats those steps."""
        self._seal()
        if self._origin is None or x >= self.end_x:
            return
        first = max(0, int((x - self._origin) // self._width) + 1)
        for array, empty in (
            (self._low, np.nan),
            (self._high, np.nan),
            (self._sum, 0.0),
            (self._count, 0.0),
            (self._broken, 0.0),
        ):
            array[first:] = empty
        self._end = min(self._end, first)
        self.end_x = self.last_x = x
        self.version += 1

    def columns(self, x0: float, x1: float, width: int) -> Columns:
        """Resample the steps from `x0` to `x1` (both included) to `width` columns."""
        self._seal()
        seen = Columns(
            np.full(width, np.nan),
            np.full(width, np.nan),
            np.full(width, np.nan),
            np.zeros(width, dtype=np.bool_),
        )
        used, column = self._placed(x0, x1, width)
        if not used.size:
            return seen
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        target = column[starts]
        seen.low[target] = np.fmin.reduceat(self._low[used], starts)
        seen.high[target] = np.fmax.reduceat(self._high[used], starts)
        seen.broken[target] = np.add.reduceat(self._broken[used], starts) > 0
        counts = np.add.reduceat(self._count[used], starts)
        sums = np.add.reduceat(self._sum[used], starts)
        seen.mean[target] = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return seen

    def steps(self, x0: float, x1: float, width: int) -> Floats:
        """Return the last step in each of `width` columns from `x0` to `x1`; NaN in empty columns."""
        self._seal()
        seen = np.full(width, np.nan)
        used, column = self._placed(x0, x1, width)
        ends = self.first_x + (used + 1.0) * self._width - 1
        seen[column] = np.minimum(ends, self.end_x)
        return seen

    def at(self, x: float) -> float | None:
        """Return the value at step `x`, or the last one before it; None if there is none."""
        self._seal()
        known = np.flatnonzero(self._count[: self._end])
        before = known[known <= (x - self.first_x) // self._width]
        return float(self._sum[before[-1]] / self._count[before[-1]]) if before.size else None

    def mean_before(self, x: float, count: int) -> float | None:
        """Return the mean of the last `count` buckets up to step `x`; None if there is none."""
        self._seal()
        known = np.flatnonzero(self._count[: self._end])
        used = known[known <= (x - self.first_x) // self._width][-count:]
        return float(self._sum[used].sum() / self._count[used].sum()) if used.size else None

    def since(self, x: float) -> "History":
        """Return a copy that begins with the bucket of step `x`."""
        self._seal()
        copy = deepcopy(self)
        first = int((x - self.first_x) // self._width)
        if copy._origin is None or first <= 0:
            return copy
        first = min(first, copy._end)
        for array, empty in zip(copy._arrays(), (np.nan, np.nan, 0.0, 0.0, 0.0), strict=True):
            array[: self._capacity - first] = array[first:]
            array[self._capacity - first :] = empty
        copy._origin, copy._end = copy._origin + first * copy._width, copy._end - first
        return copy

    def tail(self, count: int) -> Floats:
        """Return the means of the last `count` buckets that have a value, the oldest first."""
        self._seal()
        used = np.flatnonzero(self._count[: self._end])[-count:]
        means: Floats = self._sum[used] / self._count[used]
        return means

    @property
    def first_x(self) -> float:
        """Step of the first value; 0 without values."""
        return self._origin or 0.0

    def saved(self) -> SavedHistory:
        """Return the history in the form for a file."""
        self._seal()
        arrays = np.stack([array[: self._end] for array in self._arrays()]).astype("<f8")
        buckets = base64.b64encode(arrays.tobytes()).decode()
        return SavedHistory(
            self._origin, self._width, self.last, self.last_x, self.end_x, self.version, buckets
        )

    @classmethod
    def loaded(cls, saved: SavedHistory, capacity: int = CAPACITY) -> "History":
        """Return the history that was saved.

        Raises:
            ValueError: It doesn't fit this capacity.
        """
        history = cls(capacity)
        arrays = np.frombuffer(base64.b64decode(saved.buckets, validate=True), "<f8").reshape(5, -1)
        places = [saved.origin or 0.0, saved.last_x, saved.end_x]
        if arrays.shape[1] > capacity or saved.width < 1 or not np.isfinite(places).all():
            raise ValueError("no history")
        if np.isinf(arrays).any() or np.isnan(arrays[2:]).any() or (arrays[3:] < 0).any():
            raise ValueError("no buckets of a history")
        for own, values in zip(history._arrays(), arrays, strict=True):
            own[: len(values)] = values
        history._origin, history._width, history._end = saved.origin, saved.width, arrays.shape[1]
        history.last, history.last_x, history.end_x = saved.last, saved.last_x, saved.end_x
        history.version = saved.version
        return history

    def _arrays(self) -> tuple[Floats, ...]:
        return self._low, self._high, self._sum, self._count, self._broken

    def _placed(self, x0: float, x1: float, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the used buckets within the range, and their columns (ascending)."""
        used = np.flatnonzero(self._count[: self._end] + self._broken[: self._end])
        if self._origin is None or not used.size:
            return used, used
        centre = np.minimum(self._origin + (used + 0.5) * self._width - 0.5, self.end_x)
        inside = (centre >= x0) & (centre <= x1)
        share = (centre[inside] - x0) / max(x1 - x0, 1e-12)
        return used[inside], np.minimum((share * width).astype(np.intp), width - 1)

    def _index(self, x: float) -> int:
        if self._origin is None:
            self._origin = x
        index = int((x - self._origin) // self._width)
        if index < 0:
            return 0
        while index >= self._capacity:
            self._seal()
            self._fold()
            index //= 2
        return index

    def _seal(self) -> None:
        """Merge the open bucket into the arrays."""
        i = self._open
        if i < 0:
            return
        self._end = max(self._end, i + 1)
        self._broken[i] += self._open_broken
        if self._open_count:
            if not self._low[i] <= self._open_low:  # an empty bucket holds NaN, which is <= nothing
                self._low[i] = self._open_low
            if not self._high[i] >= self._open_high:
                self._high[i] = self._open_high
            self._sum[i] += self._open_sum
            self._count[i] += self._open_count
        self._open = -1
        self._open_low, self._open_high = math.inf, -math.inf
        self._open_sum, self._open_count, self._open_broken = 0.0, 0, 0

    def _fold(self) -> None:
        """Merge neighbours, to half as many buckets, each twice as wide."""
        half = self._capacity // 2
        for array, merge, empty in (
            (self._low, np.fmin, np.nan),
            (self._high, np.fmax, np.nan),
            (self._sum, np.add, 0.0),
            (self._count, np.add, 0.0),
            (self._broken, np.add, 0.0),
        ):
            array[:half] = merge(array[0::2], array[1::2])
            array[half:] = empty
        self._end = (self._end + 1) // 2
        self._width *= 2


def end_of_values(low: float, tops: Sequence[Floats], lines: Sequence[Floats]) -> float:
    """Return where a value axis from `low` may end: at the highest value, or below a few outliers.

    One far too large value, such as the first validation loss of an untrained network, would press all others
    to the bottom.

    Args:
        low: The lower end.
        tops: Of each curve, the highest point in each column; NaN in columns without values.
        lines: Smoothed lines, which it covers unless one is an outlier itself.
    """
    known = [each[np.isfinite(each)] for each in tops]
    known = [each for each in known if each.size]
    highest = max((each.max() for each in known), default=low)
    if sum(each.size for each in known) < POINTS:
        return float(highest)
    rest = max(max(_without_outliers(each), each[-1]) for each in known)
    ends = highest, max(rest, *(np.nanmax(line) for line in lines), rest)
    return float(next((end for end in ends if end - low <= OUTLYING * (rest - low)), rest))


def _without_outliers(values: Floats) -> float:
    """Return the highest value but a few; that of a single value is itself."""
    outliers = min(max(1, int(OUTLIERS * values.size)), values.size - 1)
    return float(np.sort(values)[-1 - outliers])
