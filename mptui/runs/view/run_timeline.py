"""The story of a run over its time, in constant memory for a run of any length.

Time is divided into slices. When all are in use, neighbours are merged in pairs and each slice is twice as
long. Time in which no process trained the run, before a resume, takes no slices.
"""

import base64
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

State = Literal["preparing", "compiling", "training", "waiting", "validating", "saving", "paused"]
Happening = Literal["checkpoint", "restart", "best", "switch", "recovery", "alert"]
STATES: tuple[State, ...] = get_args(State)
HAPPENINGS: tuple[Happening, ...] = get_args(Happening)
"""From the least to the most important."""

SLICES = 512
"""Number of slices, even: more than a ribbon has columns, even just after a merge."""

_FIRST_S = 1.0
_MUCH_WAITING = 0.25
"""Share of a column's time from which waiting for data is its state."""
_NAMES = 32
"""Largest number of names of precisions and profiles that are told apart."""

_SUMS = (*STATES, *HAPPENINGS, "skipped", "busy", "samples")
_LASTS = ("precision", "profile", "scale", "step", "time")
_ROWS = {name: row for row, name in enumerate((*_SUMS, *_LASTS))}


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
    """What a run did in each slice of its time."""

    def __init__(self) -> None:
        self._slices = _empty(SLICES)
        self._slice_s = _FIRST_S
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
            self._spread(passed, {state: 1 - waiting, "waiting": waiting} if waiting else {state: 1.0})
            self._elapsed += passed
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
        self._time, self._clock = time, clock

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
    def used(self) -> int:
        """Number of slices in use."""
        return min(SLICES, int(self._elapsed // self._slice_s) + 1) if self._time is not None else 0

    def columns(self, width: int) -> TimeColumns:
        """Return the story in at most `width` columns; a column has at least one slice."""
        starts = self._starts(width)
        if not starts.size:
            none, seconds, happened = np.zeros(0), np.zeros((len(STATES), 0)), np.zeros((len(HAPPENINGS), 0))
            return TimeColumns(seconds, happened, none, none, none, ())
        slices = self._slices[:, : self.used]
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
        place = min(int(moment.elapsed / self._slice_s), self.used - 1)
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
        return RunMoment(time, int(step), (place + share * 0.999) * self._slice_s)

    def settings_at(self, moment: RunMoment) -> tuple[str, str]:
        """Return precision and profile at a moment; "" if they are unknown."""
        place = min(int(moment.elapsed / self._slice_s), self.used - 1)
        precision, profile = (self._known(name)[place] for name in ("precision", "profile"))
        return self._name(precision), self._name(profile)

    def saved(self) -> SavedTimeline:
        """Return the timeline in the form for a file."""
        slices = base64.b64encode(self._slices[:, : self.used].astype("<f8").tobytes()).decode()
        return SavedTimeline(self._slice_s, self._elapsed, self._time, self._names, slices, self._clock)

    @classmethod
    def loaded(cls, saved: SavedTimeline) -> "Timeline":
        """Return the timeline that was saved.

        Raises:
            ValueError: It is none.
        """
        timeline = cls()
        slices = np.frombuffer(base64.b64decode(saved.slices, validate=True), "<f8").reshape(len(_ROWS), -1)
        numbers = [saved.slice_s, saved.elapsed, saved.time or 0.0, saved.clock or 0.0]
        if not np.isfinite(numbers).all() or saved.slice_s < _FIRST_S or saved.elapsed < 0:
            raise ValueError("no timeline")
        sums, codes = slices[: len(_SUMS)], slices[_ROWS["precision"] : _ROWS["profile"] + 1]
        if not np.isfinite(sums).all() or (sums < 0).any() or np.isinf(slices).any():
            raise ValueError("no slices of a timeline")
        if len(saved.names) > _NAMES or (codes >= len(saved.names)).any() or (codes < 0).any():
            raise ValueError("no names of a timeline")
        timeline._slice_s, timeline._elapsed, timeline._time = saved.slice_s, saved.elapsed, saved.time
        timeline._names, timeline._clock = list(saved.names), saved.clock
        if slices.shape[1] != timeline.used:
            raise ValueError("another number of slices")
        timeline._slices[:, : timeline.used] = slices
        return timeline

    def _starts(self, width: int) -> NDArray[np.intp]:
        """Return the first slice of each column."""
        columns = min(width, self.used)
        return np.arange(columns) * self.used // max(1, columns)

    def _known(self, name: str) -> Floats:
        """Return a row with the value before in slices that have none."""
        values = self._slices[_ROWS[name], : self.used]
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
        return RunMoment(time, int(step) if math.isfinite(step) else 0, (place + 0.5) * self._slice_s)

    def _name(self, code: float) -> str:
        return self._names[int(code)] if math.isfinite(code) else ""

    def _code(self, name: str) -> float:
        if name not in self._names:
            if len(self._names) == _NAMES:
                return math.nan
            self._names.append(name)
        return self._names.index(name)

    def _place(self) -> int:
        return min(int(self._elapsed // self._slice_s), SLICES - 1)

    def _set(self, **values: float) -> None:
        self.version += 1
        place = self._place()
        for name, value in values.items():
            if math.isfinite(value):
                self._slices[_ROWS[name], place] = value

    def _add(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.version += 1
            self._slices[_ROWS[name], self._place()] += value

    def _spread(self, passed: float, shares: dict[Any, float]) -> None:
        """Add seconds to the slices that they fall into."""
        end = self._elapsed + passed
        while end >= SLICES * self._slice_s:
            self._fold()
        first, last = int(self._elapsed // self._slice_s), int(end // self._slice_s)
        if first == last:  # as most of a long run
            for name, share in shares.items():
                self._slices[_ROWS[name], first] += share * passed
            return
        edges = np.arange(first, last + 2) * self._slice_s
        seconds = np.minimum(edges[1:], end) - np.maximum(edges[:-1], self._elapsed)
        for name, share in shares.items():
            self._slices[_ROWS[name], first : last + 1] += share * seconds

    def _fold(self) -> None:
        """Merge neighbours, to half as many slices, each twice as long."""
        merged = _empty(SLICES)
        early, late = self._slices[:, 0::2], self._slices[:, 1::2]
        half, sums = SLICES // 2, len(_SUMS)
        merged[:sums, :half] = early[:sums] + late[:sums]
        merged[sums:, :half] = np.where(np.isfinite(late[sums:]), late[sums:], early[sums:])
        self._slices, self._slice_s = merged, 2 * self._slice_s


def _empty(slices: int) -> Floats:
    rows = np.zeros((len(_ROWS), slices))
    rows[len(_SUMS) :] = np.nan
    return rows
