"""What a run did, in constant memory for a run of any length: the curves of its metrics, and its time line.

Values are stored in places along an axis: buckets of steps, slices of time. When the last place is taken,
neighbours are merged in pairs and each place is twice as wide, so that two thousand buckets hold a thousand
steps or ten million.
"""

import base64
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CAPACITY = 2048
"""Number of buckets of a history: several per dot of the widest chart, even just after a merge."""

SLICES = 512
"""Number of slices of a time line, even: more than a ribbon has columns, even just after a merge."""

POINTS = 8
"""An axis leaves out no value of curves with fewer values than these."""

OUTLIERS = 0.02
"""Share of the values of a curve that an axis may leave out, at least one; never the latest."""

OUTLYING = 5
"""The axis leaves them out if it would be so many times as long with them as without."""


class _Ring:
    """Rows of values in a fixed number of places along an axis.

    Args:
        capacity: Number of places, even.
        width: Length of a place on the axis, until places are merged.
        merges: Of each row, what merges the values of two neighbours, the earlier first. An empty place has 0
            in rows that are added up, and NaN in others.
    """

    def __init__(self, capacity: int, width: float, merges: Sequence[Callable[..., Floats]]) -> None:
        self.capacity = capacity
        self.width = width
        self._merges = merges
        self._empty = np.array([[0.0 if merge is np.add else np.nan] for merge in merges])
        self.values = np.repeat(self._empty, capacity, axis=1)

    def fold(self) -> None:
        """Merge neighbours, to half as many places, each twice as wide."""
        half = self.capacity // 2
        for row, merge in zip(self.values, self._merges, strict=True):
            row[:half] = merge(row[0::2], row[1::2])
        self.clear(half)
        self.width *= 2

    def clear(self, first: int) -> None:
        """Empty the places from `first` on."""
        self.values[:, first:] = self._empty

    def drop(self, count: int) -> None:
        """Drop the first `count` places, so that the next one is the first."""
        rest = self.capacity - count
        self.values[:, :rest] = self.values[:, count:]
        self.clear(rest)

    def saved(self, used: int) -> str:
        """Return the first `used` places as text: the rows as little-endian float64, in base64."""
        return base64.b64encode(self.values[:, :used].astype("<f8").tobytes()).decode()

    def rows_of(self, text: str) -> Floats:
        """Return the rows that were saved; as many places as there were.

        Raises:
            ValueError: It is no text of so many rows.
        """
        return np.frombuffer(base64.b64decode(text, validate=True), "<f8").reshape(len(self._merges), -1)


_LOW, _HIGH, _SUM, _COUNT, _BROKEN = range(5)
_MERGES = (np.fmin, np.fmax, np.add, np.add, np.add)


@dataclass(frozen=True, slots=True)
class CurveColumns:
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

    A bucket has the smallest and the largest value beside the sum, so that a spike of one step never
    disappears.

    Args:
        capacity: Number of buckets, even.

    Attributes:
        abandoned: The branch that was left last, by an undo, a rollback or a resume: from where it begins on.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring = _Ring(capacity, 1, _MERGES)
        self._origin: float | None = None
        self._end = 0
        self._open = -1
        self._open_low = math.inf
        self._open_high = -math.inf
        self._open_sum = 0.0
        self._open_count = 0
        self._open_broken = 0
        self.version = 0
        self.last = math.nan
        self.last_x = self.end_x = 0.0
        self.abandoned: History | None = None

    def append(self, x: float, y: float, low: float | None = None, high: float | None = None) -> None:
        """Append a value at step `x`; `low` and `high` are the extremes of the values it represents.

        Steps increase within a branch; a value of an earlier step is merged into the bucket of that step.
        """
        self.version += 1
        self.last = y
        self.last_x = x
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
        first = max(0, self._place_of(x) + 1)
        self._ring.clear(first)
        self._end = min(self._end, first)
        self.end_x = self.last_x = x
        self.version += 1

    def branch_off(self, x: float) -> None:
        """Begin another branch after step `x`; what came after it becomes `abandoned`."""
        self._seal()
        if self._origin is not None and x < self.end_x:
            self.abandoned = None
            self.abandoned = self.since(x)
            self.forget_after(x)

    def return_to_abandoned(self, x: float) -> None:
        """Go on with the branch that was left, up to step `x`; what has come since becomes `abandoned`."""
        other = self.abandoned
        if other is None:
            return
        self.branch_off(other.first_x)
        known, width = other._known(), other._ring.width
        steps = np.minimum(other.first_x + (known + 1.0) * width - 1, other.end_x)
        low, high, sums, counts, broken = other._ring.values[:, known]
        for step, *bucket, has_broken in zip(steps, sums / counts, low, high, broken, strict=True):
            if self.end_x < step <= x:
                self.append(float(step), *map(float, bucket))
                if has_broken:
                    self.append(float(step), math.nan)
        if self.abandoned is other:
            self.abandoned = None

    def columns(self, x0: float, x1: float, width: int) -> CurveColumns:
        """Resample the steps from `x0` to `x1` (both included) to `width` columns."""
        self._seal()
        seen = CurveColumns(
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
        seen.low[target], seen.high[target], sums, counts, broken = (
            merge.reduceat(row[used], starts) for merge, row in zip(_MERGES, self._ring.values, strict=True)
        )
        seen.broken[target] = broken > 0
        seen.mean[target] = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return seen

    def steps(self, x0: float, x1: float, width: int) -> Floats:
        """Return the last step in each of `width` columns from `x0` to `x1`; NaN in empty columns."""
        self._seal()
        seen = np.full(width, np.nan)
        used, column = self._placed(x0, x1, width)
        ends = self.first_x + (used + 1.0) * self._ring.width - 1
        seen[column] = np.minimum(ends, self.end_x)
        return seen

    def at(self, x: float) -> float | None:
        """Return the value at step `x`, or the last one before it; None if there is none."""
        return self.mean_before(x, 1)

    def mean_before(self, x: float, count: int) -> float | None:
        """Return the mean of the last `count` buckets up to step `x`; None if there is none."""
        known = self._known()
        used = known[known <= self._place_of(x)][-count:]
        sums, counts = self._ring.values[_SUM, used], self._ring.values[_COUNT, used]
        return float(sums.sum() / counts.sum()) if used.size else None

    def since(self, x: float) -> "History":
        """Return a copy that begins with the bucket of step `x`."""
        self._seal()
        copy = deepcopy(self)
        first = min(self._place_of(x), copy._end)
        if copy._origin is None or first <= 0:
            return copy
        copy._ring.drop(first)
        copy._origin = copy._origin + first * copy._ring.width
        copy._end = copy._end - first
        return copy

    def tail(self, count: int) -> Floats:
        """Return the means of the last `count` buckets that have a value, the oldest first."""
        used = self._known()[-count:]
        means: Floats = self._ring.values[_SUM, used] / self._ring.values[_COUNT, used]
        return means

    @property
    def first_x(self) -> float:
        """Step of the first value; 0 without values."""
        return self._origin or 0.0

    def saved(self) -> SavedHistory:
        """Return the history in the form for a file."""
        self._seal()
        return SavedHistory(
            origin=self._origin,
            width=int(self._ring.width),
            last=self.last,
            last_x=self.last_x,
            end_x=self.end_x,
            version=self.version,
            buckets=self._ring.saved(self._end),
        )

    @classmethod
    def loaded(cls, saved: SavedHistory, capacity: int = CAPACITY) -> "History":
        """Return the history that was saved.

        Raises:
            ValueError: It doesn't fit this capacity.
        """
        history = cls(capacity)
        ring = history._ring
        buckets = ring.rows_of(saved.buckets)
        places = [saved.origin or 0.0, saved.last_x, saved.end_x]
        has_wrong_size = buckets.shape[1] > capacity or saved.width < 1
        if has_wrong_size or not np.isfinite(places).all():
            raise ValueError("no history")
        lacks_numbers = np.isinf(buckets).any() or np.isnan(buckets[_SUM:]).any()
        if lacks_numbers or (buckets[_COUNT:] < 0).any():
            raise ValueError("no buckets of a history")
        history._origin = saved.origin
        ring.width = saved.width
        history._end = buckets.shape[1]
        ring.values[:, : history._end] = buckets
        history.last = saved.last
        history.last_x = saved.last_x
        history.end_x = saved.end_x
        history.version = saved.version
        return history

    def _place_of(self, x: float) -> int:
        return int((x - self.first_x) // self._ring.width)

    def _known(self) -> NDArray[np.intp]:
        """Return the buckets that have a value."""
        self._seal()
        return np.flatnonzero(self._ring.values[_COUNT, : self._end])

    def _placed(self, x0: float, x1: float, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the used buckets within the range, and their columns (ascending)."""
        values = self._ring.values[:, : self._end]
        used = np.flatnonzero(values[_COUNT] + values[_BROKEN])
        if self._origin is None or not used.size:
            return used, used
        centre = np.minimum(self._origin + (used + 0.5) * self._ring.width - 0.5, self.end_x)
        inside = (centre >= x0) & (centre <= x1)
        share = (centre[inside] - x0) / max(x1 - x0, 1e-12)
        return used[inside], np.minimum((share * width).astype(np.intp), width - 1)

    def _index(self, x: float) -> int:
        if self._origin is None:
            self._origin = x
        index = int((x - self._origin) // self._ring.width)
        if index < 0:
            return 0
        while index >= self._ring.capacity:
            self._seal()
            self._ring.fold()
            self._end = (self._end + 1) // 2
            index //= 2
        return index

    def _seal(self) -> None:
        """Merge the open bucket into the arrays."""
        i = self._open
        if i < 0:
            return
        self._end = max(self._end, i + 1)
        bucket = self._ring.values[:, i]
        bucket[_BROKEN] += self._open_broken
        if self._open_count:
            if not bucket[_LOW] <= self._open_low:  # an empty bucket holds NaN, which is <= nothing
                bucket[_LOW] = self._open_low
            if not bucket[_HIGH] >= self._open_high:
                bucket[_HIGH] = self._open_high
            bucket[_SUM] += self._open_sum
            bucket[_COUNT] += self._open_count
        self._open = -1
        self._open_low = math.inf
        self._open_high = -math.inf
        self._open_sum = 0.0
        self._open_count = 0
        self._open_broken = 0


State = Literal[
    "preparing", "compiling", "training", "waiting", "validating", "saving", "paused", "suspended"
]
Happening = Literal["checkpoint", "restart", "best", "switch", "recovery", "alert"]
STATES: tuple[State, ...] = get_args(State)
HAPPENINGS: tuple[Happening, ...] = get_args(Happening)
"""From the least to the most important."""

_FIRST_S = 1.0
_MUCH_WAITING = 0.25
"""Share of a column's time from which waiting for data is its state."""
_NAMES = 32
"""Largest number of names of precisions and profiles that are told apart."""

_SUMS = (*STATES, *HAPPENINGS, "skipped", "busy", "samples")
_LASTS = ("precision", "profile", "scale", "step", "time")
_ROWS = {name: row for row, name in enumerate((*_SUMS, *_LASTS))}


def _later(early: Floats, late: Floats) -> Floats:
    return np.where(np.isfinite(late), late, early)


@dataclass(frozen=True, slots=True)
class RunMoment:
    """A moment of a run: its time since the epoch, its optimizer step, and the seconds of the run so far."""

    time: float
    step: int
    elapsed: float


@dataclass(frozen=True, slots=True)
class TimeColumns:
    """The story of a run, by column of a ribbon; NaN where something is unknown.

    Attributes:
        seconds: Seconds in each of `STATES`.
        happened: How often each of `HAPPENINGS` happened.
        skipped: Skipped steps.
        busy: Mean utilisation of the device, as a fraction of 1.
        scale: Last loss scale.
        precision: Last precision; "" if it is unknown.
    """

    seconds: Floats
    happened: Floats
    skipped: Floats
    busy: Floats
    scale: Floats
    precision: tuple[str, ...]

    def main_states(self) -> list[State | None]:
        """Return the state that took most of each column; None in an empty column.

        Waiting for data counts as such from `_MUCH_WAITING` of the time on.
        """
        total = self.seconds.sum(axis=0)
        most = self.seconds.argmax(axis=0)
        waiting = STATES.index("waiting")
        most[self.seconds[waiting] > _MUCH_WAITING * total] = waiting
        return [
            STATES[state] if seconds else None
            for state, seconds in zip(most.tolist(), total.tolist(), strict=True)
        ]

    def most_important(self) -> list[Happening | None]:
        """Return the most important happening in each column; None where nothing happened."""
        found: list[Happening | None] = [None] * self.skipped.size
        for what, counts in zip(HAPPENINGS, self.happened, strict=True):
            for column in np.flatnonzero(counts).tolist():
                found[column] = what
        return found


@dataclass(frozen=True, slots=True)
class SavedTimeline:
    """A timeline for a file; `slices` are its rows as little-endian float64 in base64."""

    slice_s: float
    elapsed: float
    time: float | None
    names: list[str]
    slices: str
    clock: float | None = None


class Timeline:
    """What a run did in each slice of its time.

    Time in which no process trained the run, before a resume, takes no slices.
    """

    def __init__(self) -> None:
        self._ring = _Ring(SLICES, _FIRST_S, [np.add] * len(_SUMS) + [_later] * len(_LASTS))
        self._elapsed = 0.0
        self._time: float | None = None
        self._clock: float | None = None
        self._names: list[str] = []
        self.version = 0

    def advance(self, time: float, state: State, waiting: float = 0.0, clock: float | None = None) -> None:
        """Add the time that has passed to a state, and the share `waiting` of it to waiting for data.

        Time never runs back: an event that tells of an earlier time adds none, and is no beginning of more.

        Args:
            time: Seconds since the epoch.
            state: What the run did until now.
            waiting: Share of the time, from 0 to 1.
            clock: Seconds of the monotonic clock, which decides if it is known, whatever the time says.
        """
        passed = self._passed(time, clock)
        if passed < 0:
            return
        self._time = time
        self._clock = self._clock if clock is None else clock
        if 0 < passed < math.inf:
            waiting = min(max(waiting, 0.0), 1.0) if state == "training" else 0.0
            self._add_over_slices(
                passed, {state: 1 - waiting, "waiting": waiting} if waiting else {state: 1.0}
            )
            self._elapsed += passed
            self._set(time=time)

    def lose(self, seconds: float, time: float, state: State, clock: float | None = None) -> None:
        """Add the time that has passed to a state, but for its last `seconds`, in which nothing ran.

        A machine that sleeps stops the monotonic clock, too: then more is lost than has passed by it.
        """
        passed = max(0.0, min(self._passed(time, clock), 1e9))
        lost = min(max(0.0, seconds), 1e9)
        for state_then, part in ((state, max(0.0, passed - lost)), ("suspended", lost)):
            if part:
                self._add_over_slices(part, {state_then: 1.0})
                self._elapsed += part
        self._time = time
        self._clock = self._clock if clock is None else clock
        self._set(time=time)

    def _passed(self, time: float, clock: float | None) -> float:
        """Return the seconds since the last event; negative if this one tells of an earlier time."""
        if self._time is None:
            return 0.0
        if self._clock is None:
            return time - self._time
        # what another process tells has no clock of this one: its time is in that of the events around it
        return -1.0 if clock is None else clock - self._clock

    def skip_to(self, time: float, clock: float | None = None) -> None:
        """Leave out the time until now, in which nothing ran."""
        self._time = time
        self._clock = clock

    def reached(self, step: int, precision: str, profile: str) -> None:
        """Set step and settings of the current slice."""
        self._set(step=step, precision=self._code(precision), profile=self._code(profile))

    def scaled(self, scale: float) -> None:
        """Set the loss scale."""
        self._set(scale=scale)

    def skipped(self, steps: int) -> None:
        """Add skipped steps."""
        self._add("skipped", steps)

    def sampled(self, busy: float) -> None:
        """Add a sample of the device's utilisation."""
        self._add("busy", busy)
        self._add("samples", 1)

    def happen(self, what: Happening) -> None:
        """Add one happening."""
        self._add(what, 1)

    @property
    def elapsed(self) -> float:
        """Seconds in which processes have trained the run."""
        return self._elapsed

    def seconds_in(self, *states: State) -> float:
        """Return the seconds in which the run was in one of these states."""
        return float(sum(self._ring.values[_ROWS[state], : self.used].sum() for state in states))

    @property
    def used(self) -> int:
        """Number of slices in use."""
        return min(SLICES, int(self._elapsed // self._ring.width) + 1) if self._time is not None else 0

    def columns(self, width: int) -> TimeColumns:
        """Return the story in at most `width` columns; a column has at least one slice."""
        starts = self._starts(width)
        if not starts.size:
            none, seconds, happened = np.zeros(0), np.zeros((len(STATES), 0)), np.zeros((len(HAPPENINGS), 0))
            return TimeColumns(seconds, happened, none, none, none, ())
        slices = self._ring.values[:, : self.used]
        sums = np.add.reduceat(slices[: len(_SUMS)], starts, axis=1)
        samples = sums[_ROWS["samples"]]
        codes = self._last("precision", starts)
        return TimeColumns(
            seconds=sums[: len(STATES)],
            happened=sums[len(STATES) : len(STATES) + len(HAPPENINGS)],
            skipped=sums[_ROWS["skipped"]],
            busy=np.divide(
                sums[_ROWS["busy"]], samples, out=np.full(samples.size, np.nan), where=samples > 0
            ),
            scale=self._last("scale", starts),
            precision=tuple(self._name(code) for code in codes.tolist()),
        )

    def column_of(self, moment: RunMoment, width: int) -> int:
        """Return the column of a moment."""
        place = min(int(moment.elapsed / self._ring.width), self.used - 1)
        return max(0, int(np.searchsorted(self._starts(width), place, side="right")) - 1)

    def moment_in(self, column: int, width: int) -> RunMoment | None:
        """Return the end of a column; None without one."""
        starts = self._starts(width)
        if not starts.size:
            return None
        column = min(max(column, 0), starts.size - 1)
        last = (starts[column + 1] if column + 1 < starts.size else self.used) - 1
        return self._moment(int(last))

    def moment_at(self, step: float) -> RunMoment | None:
        """Return the moment at which `step` was reached for the last time; None if there is none."""
        steps, times = (self._known(name) for name in ("step", "time"))
        steps = np.nan_to_num(steps, nan=-np.inf)
        before = np.append(-np.inf, steps[:-1])
        places = np.flatnonzero((before < step) & (steps >= step))
        if not places.size or not math.isfinite(times[places[-1]]):
            return None
        place = int(places[-1])
        first, share = times[max(0, place - 1)], 1.0
        if math.isfinite(before[place]) and math.isfinite(first):
            share = (step - before[place]) / (steps[place] - before[place])
        else:
            first = times[place]
        time = float(first + share * (times[place] - first))
        return RunMoment(time, int(step), (place + share * 0.999) * self._ring.width)

    def settings_at(self, moment: RunMoment) -> tuple[str, str]:
        """Return precision and profile at a moment; "" if they are unknown."""
        place = min(int(moment.elapsed / self._ring.width), self.used - 1)
        precision, profile = (self._known(name)[place] for name in ("precision", "profile"))
        return self._name(precision), self._name(profile)

    def saved(self) -> SavedTimeline:
        """Return the timeline in the form for a file."""
        return SavedTimeline(
            slice_s=self._ring.width,
            elapsed=self._elapsed,
            time=self._time,
            names=self._names,
            slices=self._ring.saved(self.used),
            clock=self._clock,
        )

    @classmethod
    def loaded(cls, saved: SavedTimeline) -> "Timeline":
        """Return the timeline that was saved.

        Raises:
            ValueError: It is none.
        """
        timeline = cls()
        slices = timeline._ring.rows_of(saved.slices)
        numbers = [saved.slice_s, saved.elapsed, saved.time or 0.0, saved.clock or 0.0]
        is_too_short = saved.slice_s < _FIRST_S or saved.elapsed < 0
        if is_too_short or not np.isfinite(numbers).all():
            raise ValueError("no timeline")
        sums, codes = slices[: len(_SUMS)], slices[_ROWS["precision"] : _ROWS["profile"] + 1]
        are_sums = np.isfinite(sums).all() and (sums >= 0).all()
        if not are_sums or np.isinf(slices).any():
            raise ValueError("no slices of a timeline")
        lack_names = (codes < 0).any() or (codes >= len(saved.names)).any()
        if lack_names or len(saved.names) > _NAMES:
            raise ValueError("no names of a timeline")
        timeline._ring.width = saved.slice_s
        timeline._elapsed = saved.elapsed
        timeline._time = saved.time
        timeline._names = list(saved.names)
        timeline._clock = saved.clock
        if slices.shape[1] != timeline.used:
            raise ValueError("another number of slices")
        timeline._ring.values[:, : timeline.used] = slices
        return timeline

    def _starts(self, width: int) -> NDArray[np.intp]:
        """Return the first slice of each column."""
        columns = min(width, self.used)
        return np.arange(columns) * self.used // max(1, columns)

    def _known(self, name: str) -> Floats:
        """Return a row with the value before in slices that have none."""
        values = self._ring.values[_ROWS[name], : self.used]
        known = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(values.size), 0))
        filled: Floats = values[known]
        return filled

    def _last(self, name: str, starts: NDArray[np.intp]) -> Floats:
        ends = np.append(starts[1:], self.used) - 1
        last: Floats = self._known(name)[ends]
        return last

    def _moment(self, place: int) -> RunMoment | None:
        step, time = (float(self._known(name)[place]) for name in ("step", "time"))
        if not math.isfinite(time):
            return None
        return RunMoment(time, int(step) if math.isfinite(step) else 0, (place + 0.5) * self._ring.width)

    def _name(self, code: float) -> str:
        return self._names[int(code)] if math.isfinite(code) else ""

    def _code(self, name: str) -> float:
        if name not in self._names:
            if len(self._names) == _NAMES:
                return math.nan
            self._names.append(name)
        return self._names.index(name)

    def _place(self) -> int:
        return min(int(self._elapsed // self._ring.width), SLICES - 1)

    def _set(self, **values: float) -> None:
        self.version += 1
        place = self._place()
        for name, value in values.items():
            if math.isfinite(value):
                self._ring.values[_ROWS[name], place] = value

    def _add(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.version += 1
            self._ring.values[_ROWS[name], self._place()] += value

    def _add_over_slices(self, passed: float, shares: dict[Any, float]) -> None:
        """Add seconds to the slices that they fall into."""
        end = self._elapsed + passed
        while end >= SLICES * self._ring.width:
            self._ring.fold()
        first, last = int(self._elapsed // self._ring.width), int(end // self._ring.width)
        if first == last:  # as most of a long run
            for name, share in shares.items():
                self._ring.values[_ROWS[name], first] += share * passed
            return
        edges = np.arange(first, last + 2) * self._ring.width
        seconds = np.minimum(edges[1:], end) - np.maximum(edges[:-1], self._elapsed)
        for name, share in shares.items():
            self._ring.values[_ROWS[name], first : last + 1] += share * seconds


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
