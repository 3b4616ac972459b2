"""A search over one setting after another, in alternated rounds, which can end at any time.

Each setting is a contest: the current value and its rivals are measured in rounds, every other round in the
opposite order. After two rounds the worse half of the rivals is eliminated, after four all but the best
(successive halving: K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and
Hyperparameter Optimization", AISTATS 2016). A rival replaces the current value if the whole interval of its
ratio is above 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median
from typing import Protocol

from mptui.lab.bench.measure import MeasureError, ShortRunResult
from mptui.lab.bench.stats import ROUNDS, Ratio, ratio

Settings = Mapping[str, object]

LOSS_TOLERANCE = 0.05
"""Largest relative difference of the loss after the first steps from fp32's."""

_BATCH = "training.batch_size"
_SURE = 4
"""Rounds before a verdict."""
_PLAIN_TO_SEE = 1.05
"""A gain whose interval starts above this needs no further rounds."""
_MORE_ROUNDS, _LIKELY = 10, 1.02
"""Rounds for a rival whose median is a gain, but within the noise."""
_HOPELESS_AT_ONCE, _HOPELESS = 0.6, 0.97
"""Ratios in the best round below which a rival is eliminated, after one round and after more."""
_SLOW_RUN, _SLOW_STEP, _SLOW_STEP_S = 3.0, 4.0, 1.0
"""A rival is eliminated at once if its run takes this multiple of a usual one, or its first step this
multiple of the current value's (and these seconds), so that it doesn't use up the time of the others."""
_CLOSE = 0.93
"""A rival with at least this ratio is measured again when other settings have changed."""


@dataclass(frozen=True, slots=True)
class Option:
    """One value of a setting.

    Attributes:
        name: The name to show.
        settings: Its settings (table.key -> value).
        first_s: Additional seconds of its first run, for compiling.
    """

    name: str
    settings: Settings
    first_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TunedSetting:
    """A setting that can be tuned.

    Attributes:
        name: Name; a setting has one contest per name.
        current: Name of the current value.
        options: Its rivals, the most promising first.
        worth: Expected gain, as a fraction of the speed; larger ones are tried first.
        same_start: Whether the first steps of rivals and of the current value are comparable.
        same_batch: Whether the losses of rivals and of the current value are comparable.
    """

    name: str
    current: str
    options: tuple[Option, ...]
    worth: float
    same_batch: bool = True
    same_start: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a run is abandoned, and those for its first step (None: no limit)."""

    run_s: float
    first_step_s: float | None = None


@dataclass(slots=True)
class Entry:
    """One side of a contest: its measurements, and its ratio to the current value."""

    name: str
    settings: Settings
    rounds: list[ShortRunResult] = field(default_factory=list)
    failed: str | None = None
    ratios: list[float] = field(default_factory=list)
    over: Ratio | None = None
    first_s: float = 0.0

    def hold_against(self, other: "Entry") -> None:
        """Compute the ratio to the current value, over the rounds that both have."""
        count = min(len(self.rounds), len(other.rounds))
        ours, theirs = ([m.span for m in e.rounds[:count]] for e in (self, other))
        if count:
            self.ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]
            self.over = ratio(ours, theirs)

    @property
    def best_round(self) -> float:
        """Its ratio in its best round; 0 before the first."""
        return max(self.ratios, default=0.0)

    @property
    def sure(self) -> bool:
        """Whether it is certainly faster than the current value."""
        return self.over is not None and len(self.rounds) >= _SURE and self.over.verdict == "faster"


@dataclass(slots=True)
class TuneFinding:
    """The result of a contest: the winner's name, and the entries."""

    axis: TunedSetting
    entries: list[Entry]
    before: dict[str, object]
    kept: str = ""
    why: str = ""

    @property
    def changed(self) -> bool:
        """Whether a rival has won."""
        return self.kept != self.axis.current

    @property
    def close(self) -> bool:
        """Whether a rival lost narrowly."""
        return any(e.name != self.kept and e.over is not None and e.over.value > _CLOSE for e in self.entries)


class Clock(Protocol):
    """The remaining time."""

    def left(self) -> float:
        """Seconds until the search has to end, at least 0."""


Run = Callable[[Settings, bool, Patience], ShortRunResult]
"""Measures settings; the bool requests the loss.

Raises MeasureError, and StoppedError on a stop request or at the time limit.
"""
Propose = Callable[[Settings, ShortRunResult], Sequence[TunedSetting]]
"""Returns the tunable settings, given the current ones and their first measurement."""


class Search:
    """A running search; `best` is the result so far.

    Args:
        start: Initial settings (table.key -> value).
        first: Their measurement.
        first_s: Seconds that this took.
        propose: Returns the tunable settings.
        run: Measures settings.
        clock: The remaining time.
        tell: Called with lines about the progress.
    """

    def __init__(
        self,
        start: Settings,
        first: ShortRunResult,
        *,
        first_s: float,
        propose: Propose,
        run: Run,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self.start, self.best = dict(start), dict(start)
        self.findings: list[TuneFinding] = []
        self.total: Ratio | None = None
        self.total_rounds = 0
        self._first, self._propose, self._run, self._clock, self._tell = first, propose, run, clock, tell
        self._seconds = [first_s]
        self._reference: float | None = None

    def go(self) -> None:
        """Search until all settings are measured or the time is over.

        Raises:
            StoppedError: A stop was requested, or the time is over; `best` and `findings` are valid.
        """
        while axis := self._next({f.axis.name for f in self.findings}):
            self._contest(axis)
        again = {f.axis.name for f in self.findings if f.close and f.before != self._others(f.axis)}
        while axis := self._next(set(), only=again):
            again.discard(axis.name)
            self._contest(axis)
        self._confirm()

    @property
    def untried(self) -> list[str]:
        """The settings that were not measured for lack of time."""
        tried = {finding.axis.name for finding in self.findings}
        return [a.name for a in self._propose(self.best, self._first) if a.name not in tried]

    def _next(self, done: set[str], only: set[str] | None = None) -> TunedSetting | None:
        """Return the setting with the largest expected gain per time, with as many rivals as time allows."""
        fitting = []
        for axis in self._propose(self.best, self._first):
            if axis.name in done or not (only is None or axis.name in only):
                continue
            options = self._fitting(axis)
            if options:
                fitting.append((axis.worth / self._cost(options), axis, options))
        if not fitting:
            return None
        _, axis, options = max(fitting, key=lambda each: each[0])
        return replace(axis, options=options)

    def _fitting(self, axis: TunedSetting) -> tuple[Option, ...]:
        confirm = 2 * _SURE * self._typical if self.best != self.start else 0.0
        count = len(axis.options)
        while count and self._cost(axis.options[:count]) > self._clock.left() - confirm:
            count -= 1
        return axis.options[:count]

    def _cost(self, rivals: Sequence[Option]) -> float:
        """Return the least seconds that a contest takes, above 0."""
        compiling = sum(rival.first_s for rival in rivals)
        return _SURE * (len(rivals) + 1) * self._typical + compiling + 1e-9

    def _has_spare_time(self) -> bool:
        """Whether more time is left than all other settings need."""
        tried = {finding.axis.name for finding in self.findings}
        others = [axis for axis in self._propose(self.best, self._first) if axis.name not in tried]
        return self._clock.left() > sum(self._cost(axis.options) for axis in others)

    @property
    def _typical(self) -> float:
        return median(self._seconds)

    def _others(self, axis: TunedSetting) -> dict[str, object]:
        """Return the current settings without those of `axis`."""
        own = {key for option in axis.options for key in option.settings}
        return {key: value for key, value in self.best.items() if key not in own}

    # -- a contest

    def _contest(self, axis: TunedSetting) -> None:
        force = Entry(axis.current, {})
        finding = TuneFinding(
            axis,
            [Entry(o.name, o.settings, first_s=o.first_s) for o in axis.options],
            self._others(axis),
            axis.current,
        )
        self.findings = [f for f in self.findings if f.axis.name != axis.name] + [finding]
        rivals = ", ".join(entry.name for entry in finding.entries)
        self._tell(f"{axis.name}: current {axis.current}, trying {rivals}")
        live = finding.entries
        try:
            for number in range(_MORE_ROUNDS):
                if number == ROUNDS and not self._has_spare_time():
                    break
                self._round([force, *live], number, axis)
                live = self._still_worth(live, number + 1)
                if not live or (len(live) == 1 and _is_decided(live[0])):
                    break
        finally:
            self._settle(finding, force)

    def _round(self, entries: list[Entry], number: int, axis: TunedSetting) -> None:
        for entry in entries if number % 2 == 0 else entries[::-1]:
            if entry.failed is None:
                self._measure(entry, self._patience(entry, entries[0], axis), loss=number == 0)
        force, *rivals = entries
        if number == 0 and axis.same_batch and self.best.get(_BATCH) == self.start.get(_BATCH):
            self._check_losses(entries)
        for rival in rivals:
            rival.hold_against(force)
        results = ", ".join(f"{e.name} {e.failed or _rate(e)}" for e in entries)
        self._tell(f"  round {number + 1}: {results}")

    def _patience(self, entry: Entry, force: Entry, axis: TunedSetting) -> Patience:
        """Return the time limits of a run: all time for the current value, a share for a rival."""
        if entry is force:
            return Patience(self._clock.left())
        run_s = _SLOW_RUN * self._typical + (0.0 if entry.rounds else entry.first_s)
        step_s = force.rounds[0].first_step_s if force.rounds and axis.same_start else None
        return Patience(run_s, None if step_s is None else max(_SLOW_STEP_S, _SLOW_STEP * step_s))

    def _measure(self, entry: Entry, patience: Patience, *, loss: bool) -> None:
        before = self._clock.left()
        try:
            entry.rounds.append(self._run({**self.best, **entry.settings}, loss, patience))
        except MeasureError as error:
            entry.failed = "out of memory" if error.out_of_memory else str(error)
            return
        if len(entry.rounds) > 1 or not entry.settings:  # the first run of a rival may compile
            self._seconds.append(before - self._clock.left())

    def _check_losses(self, entries: list[Entry]) -> None:
        """Eliminate entries whose loss differs from fp32's, or from the start's if fp32 was not measured."""
        for entry in entries:
            exact = entry.settings.get("precision.mode") == "fp32"
            if entry.rounds and (exact or self._reference is None):
                self._reference = entry.rounds[0].loss
        for entry in entries:
            loss = entry.rounds[0].loss if entry.rounds else None
            if loss is not None and self._reference is not None and not _is_near(loss, self._reference):
                entry.failed = (
                    f"its loss after the first steps is {loss:.3f} instead of {self._reference:.3f}"
                )

    @staticmethod
    def _still_worth(live: list[Entry], rounds: int) -> list[Entry]:
        """Return the entries that remain after these rounds, by successive halving and without slow ones."""
        worst = _HOPELESS if rounds > 1 else _HOPELESS_AT_ONCE
        left = [e for e in live if e.failed is None and e.best_round > worst]
        if rounds >= _SURE:  # what is no faster by now will not be shown to be
            left = [e for e in left if _ratio_of(e) > 1]
        left.sort(key=_ratio_of, reverse=True)
        if rounds in {2, 4}:
            left = left[: (len(left) + 1) // 2 if rounds == 2 else 1]
        return left

    def _settle(self, finding: TuneFinding, force: Entry) -> None:
        """Make the best rival that is certainly faster the current value, also in an interrupted contest."""
        sure = [e for e in finding.entries if e.failed is None and e.sure]
        if force.failed is not None:  # the current value has another loss than fp32, or fails now
            finding.why = f"{force.name}: {force.failed}"
            sure = sure or [e for e in finding.entries if e.failed is None and e.rounds]
        if sure:
            best = max(sure, key=_ratio_of)
            self.best |= best.settings
            finding.kept = best.name
        verdict = finding.kept if finding.changed else f"{finding.kept} stays"
        self._tell(f"{finding.axis.name}: {verdict}; {rivals_text(finding)}")

    def _confirm(self) -> None:
        """Measure the result against the start while there is time, as single gains may not multiply."""
        if self.best == self.start:
            return
        before, after = Entry("start", self.start), Entry("outcome", {})
        self._tell("the result against the start")
        for number in range(ROUNDS):
            if self._clock.left() < 2 * self._typical:
                break
            for entry in (before, after) if number % 2 == 0 else (after, before):
                self._measure(entry, Patience(self._clock.left()), loss=False)
            if before.failed or after.failed:
                break
            after.hold_against(before)
            self.total, self.total_rounds = after.over, number + 1


def rivals_text(finding: TuneFinding) -> str:
    """Describe the results of the rivals."""
    return "; ".join(
        [*([finding.why] if finding.why else []), *(_rivals_text(entry) for entry in finding.entries)]
    )


def _rivals_text(entry: Entry) -> str:
    if entry.failed is not None:
        return f"{entry.name} eliminated: {entry.failed}"
    if entry.over is None:
        return f"{entry.name} was not measured"
    return f"{entry.name} {shown(entry.over, len(entry.rounds))}"


def shown(over: Ratio, rounds: int) -> str:
    """Format a ratio with its interval and rounds, and whether it is within the noise."""
    if rounds == 1:
        return f"{over.value:.2f} times (one round)"
    noise = ", within the noise" if over.verdict == "same" else ""
    return f"{over.value:.2f} times ({over.low:.2f} to {over.high:.2f}, {rounds} rounds{noise})"


def _is_decided(entry: Entry) -> bool:
    """Whether further rounds can't change the verdict on the last rival."""
    if entry.over is None:
        return False
    if len(entry.rounds) < ROUNDS:
        return entry.sure and entry.over.low > _PLAIN_TO_SEE
    if len(entry.rounds) == ROUNDS:
        return entry.over.verdict != "same" or entry.over.value < _LIKELY
    return False


def _ratio_of(entry: Entry) -> float:
    return entry.over.value if entry.over is not None else 0.0


def _is_near(loss: float, reference: float) -> bool:
    return isfinite(loss) and abs(loss - reference) <= LOSS_TOLERANCE * abs(reference)


def _rate(entry: Entry) -> str:
    return f"{entry.rounds[-1].samples_per_second:,.1f}" if entry.rounds else "–"
