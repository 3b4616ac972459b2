"""A search over one setting after another, in alternated rounds, which can end at any time."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median
from typing import Any, Literal, Protocol, get_args, get_origin

from mptui.config.keys import SETTINGS
from mptui.config.schema import RunConfig
from mptui.engine.compile import estimated_start_s
from mptui.engine.memory.ledger import footprint
from mptui.engine.memory.tape import UncountableError
from mptui.errors import ConfigError, DataError, DiskError, DivergedError, MemoryExhaustedError, MptuiError
from mptui.hardware.advice import measurable_precisions
from mptui.lab.measure.core import (
    LOSS_AT,
    ROUNDS,
    Effort,
    MeasureError,
    Measurer,
    Ratio,
    ShortRunResult,
    StoppedError,
    endless,
    ratio,
)
from mptui.registry.own_code import is_own
from mptui.runs.planning.plan import Plan

# A search over one setting after another, in alternated rounds, which can end at any time
# ----------------------------------------------------------------------------------------
# Each setting is a contest: the current value and its rivals are measured in rounds, every other round in
# the opposite order. After two rounds the worse half of the rivals is eliminated, after four all but the
# best (successive halving: K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and
# Hyperparameter Optimization", AISTATS 2016). A rival replaces the current value if the whole interval of
# its ratio is above 1.

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

    def seconds_left(self) -> float:
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
        on_line: Called with lines about the progress.
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
        on_line: Callable[[str], None],
    ) -> None:
        self.start = dict(start)
        self.best = dict(start)
        self.findings: list[TuneFinding] = []
        self.total: Ratio | None = None
        self.total_rounds = 0
        self._first = first
        self._propose = propose
        self._run = run
        self._clock = clock
        self._on_line = on_line
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
            is_asked = only is None or axis.name in only
            if axis.name in done or not is_asked:
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
        while count and self._cost(axis.options[:count]) > self._clock.seconds_left() - confirm:
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
        return self._clock.seconds_left() > sum(self._cost(axis.options) for axis in others)

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
        self._on_line(f"{axis.name}: current {axis.current}, trying {rivals}")
        live = finding.entries
        try:
            for number in range(_MORE_ROUNDS):
                if number == ROUNDS and not self._has_spare_time():
                    break
                self._round([force, *live], number, axis)
                live = self._still_worth(live, number + 1)
                is_decided = len(live) == 1 and _is_decided(live[0])
                if not live or is_decided:
                    break
        finally:
            self._adopt_best(finding, force)

    def _round(self, entries: list[Entry], number: int, axis: TunedSetting) -> None:
        for entry in entries if number % 2 == 0 else entries[::-1]:
            if entry.failed is None:
                self._measure(entry, self._time_limits(entry, entries[0], axis), loss=number == 0)
        force, *rivals = entries
        has_same_batch = axis.same_batch and self.best.get(_BATCH) == self.start.get(_BATCH)
        if number == 0 and has_same_batch:
            self._check_losses(entries)
        for rival in rivals:
            rival.hold_against(force)
        results = ", ".join(f"{e.name} {e.failed or _rate(e)}" for e in entries)
        self._on_line(f"  round {number + 1}: {results}")

    def _time_limits(self, entry: Entry, force: Entry, axis: TunedSetting) -> Patience:
        """Return the time limits of a run: all time for the current value, a share for a rival."""
        if entry is force:
            return Patience(self._clock.seconds_left())
        run_s = _SLOW_RUN * self._typical + (0.0 if entry.rounds else entry.first_s)
        step_s = force.rounds[0].first_step_s if force.rounds and axis.same_start else None
        return Patience(run_s, None if step_s is None else max(_SLOW_STEP_S, _SLOW_STEP * step_s))

    def _measure(self, entry: Entry, patience: Patience, *, loss: bool) -> None:
        before = self._clock.seconds_left()
        try:
            entry.rounds.append(self._run({**self.best, **entry.settings}, loss, patience))
        except MeasureError as error:
            entry.failed = "out of memory" if error.out_of_memory else str(error)
            return
        if len(entry.rounds) > 1 or not entry.settings:  # the first run of a rival may compile
            self._seconds.append(before - self._clock.seconds_left())

    def _check_losses(self, entries: list[Entry]) -> None:
        """Eliminate entries whose loss differs from fp32's, or from the start's if fp32 was not measured."""
        for entry in entries:
            exact = entry.settings.get("precision.mode") == "fp32"
            is_reference = exact or self._reference is None
            if entry.rounds and is_reference:
                self._reference = entry.rounds[0].loss
        if self._reference is None:
            return
        for entry in entries:
            loss = entry.rounds[0].loss if entry.rounds else None
            if loss is not None and not _is_near(loss, self._reference):
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

    def _adopt_best(self, finding: TuneFinding, force: Entry) -> None:
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
        self._on_line(f"{finding.axis.name}: {verdict}; {rivals_text(finding)}")

    def _confirm(self) -> None:
        """Measure the result against the start while there is time, as single gains may not multiply."""
        if self.best == self.start:
            return
        before, after = Entry("start", self.start), Entry("outcome", {})
        self._on_line("the result against the start")
        for number in range(ROUNDS):
            if self._clock.seconds_left() < 2 * self._typical:
                break
            for entry in (before, after) if number % 2 == 0 else (after, before):
                self._measure(entry, Patience(self._clock.seconds_left()), loss=False)
            if before.failed or after.failed:
                break
            after.hold_against(before)
            self.total = after.over
            self.total_rounds = number + 1


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


# The result of a search: a configuration, and its evidence in sentences
# ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TuneCost:
    """The cost of a search: seconds and measured runs."""

    seconds: float
    runs: int


def settings(plan: Plan, search: Search) -> dict[str, object]:
    """Return the changes to the profile of `plan` (table.key -> value) that were measured to be better.

    Settings that were not measured, or within the noise, stay as in the profile.
    """
    chosen = {key: value for key, value in search.best.items() if value != search.start.get(key)}
    if MICRO_BATCH in search.start:  # the whole batch did not fit into memory
        chosen[MICRO_BATCH] = search.best[MICRO_BATCH]
    # the start is not compiled, even if the profile is: then eager must have been faster
    compile_mode = plan.config.speed.compile
    would_compile = COMPILE not in chosen and compile_mode != "off"
    if would_compile and _has_lost(search, compile_mode):
        chosen[COMPILE] = "off"
    return chosen


def _has_lost(search: Search, mode: str) -> bool:
    """Whether compiling in this mode was measured and is slower than eager, or fails."""
    entries = [e for f in search.findings for e in f.entries if e.settings.get(COMPILE) == mode]
    return any(
        entry.failed is not None or (entry.over is not None and entry.over.verdict == "slower")
        for entry in entries
    )


def is_better(plan: Plan, search: Search) -> bool:
    """Whether the result is better in total: single gains may not add up."""
    return bool(settings(plan, search)) and (search.total is None or search.total.value > 1)


def tuned(plan: Plan, chosen: Mapping[str, object]) -> RunConfig:
    """Return the configuration of `plan` with the result, as a profile for this model and data."""
    tables: dict[str, dict[str, object]] = {}
    for key, value in chosen.items():
        table, name = key.split(".")
        tables.setdefault(table, {})[name] = value
    config = plan.config.model_copy(update={"data": plan.data_from_anywhere()})
    copies: dict[str, Any] = {
        table: getattr(config, table).model_copy(update=values) for table, values in tables.items()
    }
    return RunConfig.model_validate(config.model_copy(update=copies).model_dump())


def description(plan: Plan) -> str:
    """Return the description for lists of profiles."""
    config = plan.config
    return f"{config.model.name} at {config.data.image_size} px, as tuned on {plan.device.name}"


def evidence(plan: Plan, search: Search, effort: TuneCost, cpus: int) -> list[str]:
    """Return the measurements, one per line, for the head of the profile and the console."""
    import torch

    from mptui import __version__

    config = plan.config
    lines = [
        f"Measured by mptui tune {__version__} on {time.strftime('%Y-%m-%d')}: {plan.device.name}, "
        f"{cpus} CPUs, torch {torch.__version__}, Python {platform.python_version()}",
        f"{config.model.name} at {config.data.image_size} px on {config.data.path or config.data.name}, "
        f"batch {config.training.batch_size}, from profile {plan.resolved.profile}; {effort.runs} runs in "
        f"{effort.seconds / 60:.1f} minutes",
        "Figures: images/s relative to the current value then; median, 95 % interval, alternated rounds.",
    ]
    if search.total is not None:
        lines.append(f"In total: {shown(search.total, search.total_rounds)} as fast as the start")
    for finding in search.findings:
        verdict = "chosen" if finding.changed else "stays"
        lines.append(f"{finding.axis.name}: {finding.kept} {verdict}; {rivals_text(finding)}")
    if search.untried:
        lines.append(f"Not measured for lack of time, as in the profile: {', '.join(search.untried)}")
    return lines


def document(plan: Plan, search: Search, effort: TuneCost) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        "model": plan.config.model.name,
        "dataset": plan.config.data.path or plan.config.data.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "settings": settings(plan, search),
        "better": is_better(plan, search),
        "ratio": None if search.total is None else search.total.document,
        "ratio_rounds": search.total_rounds,
        "seconds": effort.seconds,
        "runs": effort.runs,
        "findings": [
            {
                "name": finding.axis.name,
                "before": finding.axis.current,
                "kept": finding.kept,
                "why": finding.why or None,
                "tried": [
                    {
                        "value": entry.name,
                        "settings": dict(entry.settings),
                        "ratio": None if entry.over is None else entry.over.document,
                        "verdict": None if entry.over is None else entry.over.verdict,
                        "rounds": [measured.samples_per_second for measured in entry.rounds],
                        "failed": entry.failed,
                    }
                    for entry in finding.entries
                ],
            }
            for finding in search.findings
        ],
        "untried": search.untried,
    }


# The tunable settings of a device, each with its rivals and their expected gain
# ------------------------------------------------------------------------------
# The values come from the schema, so that new ones are tried too. Settings given by a flag, a variable or
# `--set` are not tuned.

MICRO_BATCH, BATCH = "memory.micro_batch", "training.batch_size"
COMPILE = "speed.compile"

_WAIT = 0.005
"""Fraction of time waiting for data below which the input settings can't gain anything."""
_EPOCH_STEPS = 50
"""Least steps per epoch with a larger batch."""

# expected gains, as a fraction of the speed, from published figures; only their order matters
_GAINS = {
    "gpu": {
        "precision.mode": 0.6,
        "speed.compile": 0.3,
        "speed.channels_last": 0.2,
        BATCH: 0.2,
        "precision.matmul": 0.1,
        "speed.fused": 0.03,
        MICRO_BATCH: 0.01,
    },
    "cpu": {
        "precision.mode": 0.5,
        "speed.channels_last": 0.2,
        "speed.compile": 0.15,
        MICRO_BATCH: 0.08,
        BATCH: 0.03,
        "speed.fused": 0.02,
        "precision.matmul": 0.0,
    },
}
_LITTLE = 0.005


@dataclass(frozen=True, slots=True)
class Tunable:
    """A run to tune.

    Attributes:
        plan: Plan of the requested run.
        cpus: CPUs that it may use.
        free_bytes: Free memory of the device; None: unknown.
    """

    plan: Plan
    cpus: int
    free_bytes: int | None

    def start(self) -> dict[str, object]:
        """Return the initial settings: the profile's, as suits the device, not compiled."""
        plan, config = self.plan, self.plan.config
        return {
            "precision.mode": plan.precision.used,
            "precision.matmul": config.precision.matmul,
            "speed.compile": "off",
            "speed.channels_last": plan.channels_last,
            "speed.fused": plan.fused,
            "data.workers": plan.workers,
            "data.prefetch": config.data.prefetch,
            "data.cache": config.data.cache,
            BATCH: config.training.batch_size,
        }

    def axes(self, best: Settings, first: ShortRunResult) -> list[TunedSetting]:
        """Return all tunable settings, given the current ones and the start's measurement."""
        found = [
            *self._of_the_device(best),
            *self._of_the_batch(best, first),
            *self._of_the_data(best, first),
        ]
        return [axis for axis in found if axis.options and not self._is_given(axis)]

    @property
    def _kind(self) -> str:
        return "cpu" if self.plan.device.kind == "cpu" else "gpu"

    def _gain(self, key: str) -> float:
        return _GAINS[self._kind][key]

    def _is_given(self, axis: TunedSetting) -> bool:
        sources = self.plan.resolved.sources
        keys = {key for option in axis.options for key in option.settings}
        return any(sources[key].startswith(("--", "MPTUI_")) for key in keys)

    def _axis(
        self,
        key: str,
        best: Settings,
        values: Sequence[object],
        worth: float,
        **more: Any,  # noqa: ANN401
    ) -> TunedSetting:
        current = best.get(key)
        options = tuple(Option(_shown(v), {key: v}, self._first_s(key, v)) for v in values if v != current)
        return TunedSetting(more.pop("name", key), _shown(current), options, worth, **more)

    def _first_s(self, key: str, value: object) -> float:
        return estimated_start_s(self.plan.device.kind, str(value)) if key == "speed.compile" else 0.0

    def _of_the_device(self, best: Settings) -> Iterator[TunedSetting]:
        native, measurable = self.plan.device.native, measurable_precisions(self.plan.device)
        modes = [str(mode) for mode in _choices("precision.mode")]
        fast = [mode for mode in modes if mode == "fp32" or native.get(mode) == "native"]
        slow = [mode for mode in modes if mode in measurable and mode not in fast]
        yield self._axis("precision.mode", best, fast, self._gain("precision.mode"), same_start=True)
        # emulated formats are nearly always slower, so they are tried last
        yield self._axis(
            "precision.mode", best, slow, _LITTLE, name="precision.mode, emulated", same_start=True
        )
        if native.get("tf32") == "native" and best["precision.mode"] == "fp32":
            yield self._axis(
                "precision.matmul", best, ("highest", "high"), self._gain("precision.matmul"), same_start=True
            )
        if self.plan.device.kind != "mps":
            for key in ("speed.channels_last", "speed.fused"):
                yield self._axis(key, best, _choices(key), self._gain(key), same_start=True)
            compiled = _choices("speed.compile") if self._kind == "gpu" else ["off", "default"]
            yield self._axis("speed.compile", best, compiled, self._gain("speed.compile"))

    def _of_the_batch(self, best: Settings, first: ShortRunResult) -> Iterator[TunedSetting]:
        batch = int(str(best[BATCH]))
        micro = best.get(MICRO_BATCH, batch)
        smaller = [size for size in (batch // 2, batch // 4) if size >= 2 and size != micro]
        yield self._axis(MICRO_BATCH, {MICRO_BATCH: micro}, smaller, self._gain(MICRO_BATCH))
        # a larger batch changes the training, unless the profile rescales the rate
        asked = self.plan.config.training
        if asked.lr_batch_size is None or MICRO_BATCH in best:
            return
        larger = [
            size for size in (2 * asked.batch_size, 4 * asked.batch_size) if self._fits(size, best, first)
        ]
        yield self._axis(BATCH, best, larger, self._gain(BATCH), same_batch=False)

    def _fits(self, batch: int, best: Settings, first: ShortRunResult) -> bool:
        """Whether a batch is small compared to the data set and is predicted to fit into memory."""
        asked = self.plan.config
        samples = first.epoch_steps * asked.training.batch_size
        if asked.data.samples is not None:  # measured runs of the built-in data are longer
            samples = min(samples, asked.data.samples)
        if samples < _EPOCH_STEPS * batch:
            return False
        if self.free_bytes is None or is_own(asked.model.name):
            return True  # what does not fit is found out
        config = asked.model_copy(
            update={"training": asked.training.model_copy(update={"batch_size": batch})}
        )
        device = self.plan.device.torch_name.partition(":")[0]
        try:
            predicted = footprint(
                config,
                self.plan.task,
                device=device,
                precision=str(best["precision.mode"]),
                classes=first.classes,
            )
        except UncountableError:
            return True
        return predicted.total <= self.free_bytes

    def _of_the_data(self, best: Settings, first: ShortRunResult) -> Iterator[TunedSetting]:
        waits = first.wait / (1 - min(first.wait, 0.99)) if first.wait > _WAIT else 0.0
        worth = waits or _LITTLE
        yield self._axis("data.cache", best, _choices("data.cache"), worth)
        never_waits = not waits and best["data.cache"] != "off"
        if never_waits or best["data.cache"] == "device":
            return
        counts = sorted({0, 1, max(1, self.cpus // 2), self.cpus, 2 * self.cpus})
        yield self._axis("data.workers", best, counts, worth)
        if best["data.workers"] != 0:
            yield self._axis("data.prefetch", best, (2, 8, 16), worth / 4)


def _choices(key: str) -> list[object]:
    """Return the values of a key in its schema; auto is a separate value only for the cache."""
    found: list[object] = []
    for kind in _kinds(SETTINGS[key].field.annotation):
        if kind is bool:
            found += [True, False]
        elif get_origin(kind) is Literal:
            found += get_args(kind)
    return [value for value in found if value != "auto" or key == "data.cache"]


def _kinds(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type as the schema has it
    return (annotation,) if get_origin(annotation) is Literal else get_args(annotation) or (annotation,)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Searches the settings of a run within a time limit, from a start that fits into memory
# --------------------------------------------------------------------------------------

_ERRORS = {e.exit_code: e for e in (ConfigError, DataError, DivergedError, MemoryExhaustedError, DiskError)}
_RUNS = 100
"""Number of runs that the time should suffice for."""
_FEWEST = 4
"""Steps after which losses are compared if `LOSS_AT` steps would take too long."""
_SHORTEST_S, _LONGEST_S = 0.5, 3.0


class Deadline:
    """The end of the time that was given."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the seconds until then, at least 0."""
        return max(0.0, self._until - time.monotonic())


class Tuning:
    """A search that measures real runs.

    Args:
        plan: Plan of the requested run.
        measurer: Measures runs.
        seconds: Time limit.
        cpus: CPUs that the run may use.
        on_line: Called with lines about the progress.
    """

    def __init__(
        self, plan: Plan, measurer: Measurer, *, seconds: float, cpus: int, on_line: Callable[[str], None]
    ) -> None:
        self.clock = Deadline(seconds)
        self.runs = 0
        self.search: Search | None = None
        self._given_s = seconds
        self._began = time.monotonic()
        self._loss_at = LOSS_AT
        self._plan = plan
        self._measurer = measurer
        self._on_line = on_line
        self._request = endless(plan.request, plan)
        self._timed_s = min(_LONGEST_S, max(_SHORTEST_S, seconds / _RUNS))
        self._tunable = Tunable(plan, cpus, _free_bytes(plan))

    @property
    def seconds(self) -> float:
        """Seconds taken so far."""
        return time.monotonic() - self._began

    def go(self) -> None:
        """Search until all settings are measured or the time is over; sets `search` after the start.

        Raises:
            MptuiError: The start could not be measured.
            StoppedError: A stop was requested, or the time is over; `search` is valid.
        """
        start, first = self._fitting_start()
        self._on_line(f"the start: {first.samples_per_second:,.1f} images/s")
        step_s = self._plan.config.training.batch_size / first.samples_per_second
        self._loss_at = int(max(_FEWEST, min(LOSS_AT, self._given_s / _RUNS * 3 / step_s)))
        self.search = Search(
            start,
            first,
            first_s=first.run_s or self.seconds,
            propose=self._tunable.axes,
            run=self._run,
            clock=self.clock,
            on_line=self._on_line,
        )
        self.search.go()

    def _fitting_start(self) -> tuple[dict[str, object], ShortRunResult]:
        """Return the start and its measurement, with smaller micro-batches if it doesn't fit into memory."""
        start = self._tunable.start()
        pieces = batch = self._plan.config.training.batch_size
        while True:
            try:
                return start, self._run(start, False, Patience(self.clock.seconds_left()))
            except MeasureError as error:
                if not error.out_of_memory or pieces == 1:
                    raise _as_ours(error) from error
                pieces = (pieces + 1) // 2
                start[MICRO_BATCH] = pieces
                self._on_line(f"{BATCH} = {batch} does not fit; tries {MICRO_BATCH} = {pieces}")

    def _run(self, settings: Settings, loss: bool, patience: Patience) -> ShortRunResult:
        if not self.clock.seconds_left():
            raise StoppedError
        self.runs += 1
        left = self.clock.seconds_left()
        loss_at = self._loss_at if loss else 0
        effort = Effort(self._timed_s, loss_at, min(left, patience.run_s), patience.first_step_s)
        try:
            return self._measurer.measure(self._request, settings, effort)
        except MeasureError:
            if not self.clock.seconds_left():  # it was not slow: it was the last
                raise StoppedError from None
            raise


def _as_ours(error: MeasureError) -> MptuiError:
    """Convert the error of the first run to an `MptuiError` with its exit code."""
    kind = _ERRORS.get(error.exit_code, MptuiError)
    return kind(str(error), hint="check that it trains: the same with mptui run --max-steps 20")


def _free_bytes(plan: Plan) -> int | None:
    if plan.device.kind == "cpu":
        from mptui.hardware.host import host_memory

        return host_memory()[1]
    return plan.device.memory_free
