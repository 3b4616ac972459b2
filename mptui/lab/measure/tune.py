"""A search over one setting after another, in alternated rounds, which can end at any time."""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from typing_extensions import override

from mptui.config.keys import SETTINGS, with_values
from mptui.config.schema import RunConfig
from mptui.engine.compile import estimated_start_s
from mptui.engine.memory.ledger import footprint
from mptui.engine.memory.tape import UncountableError
from mptui.errors import MptuiError, error_of_code
from mptui.hardware.advice import measurable_precisions
from mptui.lab.measure.core import (
    LOSS_AT,
    ROUNDS,
    SLOW_STARTS,
    Contest,
    Deadline,
    Effort,
    Measure,
    MeasureError,
    Measurer,
    Ratio,
    Row,
    Settings,
    ShortRunResult,
    StoppedError,
    Variant,
    endless,
    expected_s,
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
_CLOSE = 0.93
"""A rival with at least this ratio is measured again when other settings have changed."""


@dataclass(frozen=True, slots=True)
class TunedSetting:
    """A setting that can be tuned.

    Attributes:
        name: Name; a setting has one contest per name.
        current: Name of the current value.
        options: Its rivals, the most promising first, each with its own settings alone.
        worth: Expected gain, as a fraction of the speed; larger ones are tried first.
    """

    name: str
    current: str
    options: tuple[Variant, ...]
    worth: float

    @property
    def variants(self) -> list[Variant]:
        """The current value, and its rivals."""
        return [Variant(self.current, self.current, {}), *self.options]

    @property
    def keys(self) -> set[str]:
        """The settings that its rivals change."""
        return {key for option in self.options for key in option.settings}


class SettingContest(Contest):
    """A contest of a setting's values, where a slow one doesn't use up the time of the others."""

    slow_step = 4.0
    slow_starts = SLOW_STARTS | {"training.batch_size", "memory.micro_batch", "data.prefetch"}
    slow_run = 3.0

    @override
    def _failure(self, error: MeasureError) -> str:
        return "out of memory" if error.out_of_memory else str(error)


@dataclass(slots=True)
class TuneFinding:
    """The result of a contest: the winner's name, and the rivals."""

    axis: TunedSetting
    rivals: list[Row]
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
        return any(row.variant.name != self.kept and _times(row) > _CLOSE for row in self.rivals)


Propose = Callable[[Settings, ShortRunResult], Sequence[TunedSetting]]
"""Returns the tunable settings, given the current ones and their first measurement."""


class Search:
    """A running search; `best` is the result so far.

    Args:
        start: Initial settings (table.key -> value).
        first: Their measurement.
        first_s: Seconds that this took.
        propose: Returns the tunable settings.
        measure: Measures settings; raises StoppedError on a stop request or at the time limit.
        effort: Effort of each run.
        deadline: When the search has to end.
        on_line: Called with lines about the progress.
    """

    def __init__(
        self,
        start: Settings,
        first: ShortRunResult,
        *,
        first_s: float,
        propose: Propose,
        measure: Measure,
        effort: Effort,
        deadline: Deadline,
        on_line: Callable[[str], None],
    ) -> None:
        self.start = dict(start)
        self.best = dict(start)
        self.findings: list[TuneFinding] = []
        self.total: Ratio | None = None
        self.total_rounds = 0
        self._first = first
        self._propose = propose
        self._measure = measure
        self._effort = effort
        self._deadline = deadline
        self._on_line = on_line
        self._seconds = [first_s]
        self._reference: float | None = None

    def go(self) -> None:
        """Search until all settings are measured or the time is over.

        Raises:
            StoppedError: A stop was requested, or the time is over; `best` and `findings` are valid.
        """
        while axis := self._next(self._untried()):
            self._contest(axis)
        again = {f.axis.name for f in self.findings if f.close and f.before != self._others(f.axis)}
        while axis := self._next([axis for axis in self._axes() if axis.name in again]):
            again.discard(axis.name)
            self._contest(axis)
        self._confirm()

    @property
    def untried(self) -> list[str]:
        """The settings that were not measured for lack of time."""
        return [axis.name for axis in self._untried()]

    def _axes(self) -> Sequence[TunedSetting]:
        return self._propose(self.best, self._first)

    def _untried(self) -> list[TunedSetting]:
        tried = {finding.axis.name for finding in self.findings}
        return [axis for axis in self._axes() if axis.name not in tried]

    def _next(self, axes: Iterable[TunedSetting]) -> TunedSetting | None:
        """Return the setting with the largest expected gain per time, with as many rivals as time allows."""
        fitting = [axis for axis in map(self._fitting, axes) if axis.options]
        return max(fitting, key=lambda axis: axis.worth / self._cost(axis), default=None)

    def _fitting(self, axis: TunedSetting) -> TunedSetting:
        """Return a setting with as many rivals as there is time for."""
        confirm = 2 * _SURE * self._typical if self.best != self.start else 0.0
        while axis.options and self._cost(axis) > self._deadline.seconds_left() - confirm:
            axis = replace(axis, options=axis.options[:-1])
        return axis

    def _cost(self, axis: TunedSetting) -> float:
        """Return the least seconds that a contest takes, above 0."""
        return expected_s(map(Row, axis.variants), _SURE, self._typical) + 1e-9

    def _has_spare_time(self) -> bool:
        """Whether more time is left than all other settings need."""
        return self._deadline.seconds_left() > sum(map(self._cost, self._untried()))

    @property
    def _typical(self) -> float:
        return median(self._seconds)

    def _others(self, axis: TunedSetting) -> dict[str, object]:
        """Return the current settings without those of `axis`."""
        return {key: value for key, value in self.best.items() if key not in axis.keys}

    # -- a contest

    def _contest(self, axis: TunedSetting) -> None:
        contest = SettingContest(
            axis.variants, self._measure_beside, self._effort, deadline=self._deadline, seconds=self._seconds
        )
        force, *live = contest.rows
        finding = TuneFinding(axis, live, self._others(axis), axis.current)
        self.findings = [f for f in self.findings if f.axis.name != axis.name] + [finding]
        rivals = ", ".join(option.name for option in axis.options)
        self._on_line(f"{axis.name}: current {axis.current}, trying {rivals}")
        try:
            for number in range(_MORE_ROUNDS):
                if number == ROUNDS and not self._has_spare_time():
                    break
                self._round(contest, number, has_losses=number == 0 and self._has_same_batch(axis))
                live = self._still_worth(live, number + 1)
                contest.live = [force, *live]
                is_decided = len(live) == 1 and _is_decided(live[0])
                if not live or is_decided:
                    break
        finally:
            self._adopt_best(finding, force)

    def _measure_beside(self, settings: Settings, effort: Effort) -> ShortRunResult:
        """Measure settings with the current ones."""
        return self._measure({**self.best, **settings}, effort)

    def _has_same_batch(self, axis: TunedSetting) -> bool:
        """Whether losses can be compared with the start's."""
        return _BATCH not in axis.keys and self.best.get(_BATCH) == self.start.get(_BATCH)

    def _round(self, contest: Contest, number: int, *, has_losses: bool) -> None:
        for row in contest.in_turn(number):
            contest.measure(row)
        if has_losses:
            self._check_losses(contest.rows)
        results = ", ".join(f"{row.variant.name} {row.failed or _rate(row)}" for row in contest.live)
        self._on_line(f"  round {number + 1}: {results}")

    def _check_losses(self, rows: list[Row]) -> None:
        """Eliminate rows whose loss differs from fp32's, or from the start's if fp32 was not measured."""
        for row in rows:
            exact = row.variant.settings.get("precision.mode") == "fp32"
            is_reference = exact or self._reference is None
            if row.rounds and is_reference:
                self._reference = row.loss
        if self._reference is None:
            return
        for row in rows:
            if row.loss is not None and not _is_near(row.loss, self._reference):
                row.failed = (
                    f"its loss after the first steps is {row.loss:.3f} instead of {self._reference:.3f}"
                )

    @staticmethod
    def _still_worth(live: list[Row], rounds: int) -> list[Row]:
        """Return the rivals that remain after these rounds, by successive halving and without slow ones."""
        worst = _HOPELESS if rounds > 1 else _HOPELESS_AT_ONCE
        left = [row for row in live if row.failed is None and _best_round(row) > worst]
        if rounds >= _SURE:  # what is no faster by now will not be shown to be
            left = [row for row in left if _times(row) > 1]
        left.sort(key=_times, reverse=True)
        if rounds in {2, 4}:
            left = left[: (len(left) + 1) // 2 if rounds == 2 else 1]
        return left

    def _adopt_best(self, finding: TuneFinding, force: Row) -> None:
        """Make the best rival that is certainly faster the current value, also in an interrupted contest."""
        rivals = [row for row in finding.rivals if row.failed is None]
        sure = [row for row in rivals if _is_sure(row)]
        if force.failed is not None:  # the current value has another loss than fp32, or fails now
            finding.why = f"{force.variant.name}: {force.failed}"
            sure = sure or [row for row in rivals if row.rounds]
        if sure:
            best = max(sure, key=_times).variant
            self.best |= best.settings
            finding.kept = best.name
        verdict = finding.kept if finding.changed else f"{finding.kept} stays"
        self._on_line(f"{finding.axis.name}: {verdict}; {rivals_text(finding)}")

    def _confirm(self) -> None:
        """Measure the result against the start while there is time, as single gains may not multiply."""
        if self.best == self.start:
            return
        self._on_line("the result against the start")
        sides = Variant("start", "start", self.start), Variant("outcome", "outcome", self.best)
        effort = replace(self._effort, loss_at=0)
        contest = Contest(sides, self._measure, effort, deadline=self._deadline, seconds=self._seconds)
        before, after = contest.rows
        for number in range(ROUNDS):
            if self._deadline.seconds_left() < 2 * self._typical:
                break
            for row in contest.in_turn(number):
                contest.measure(row)
            if before.failed or after.failed:
                break
            self.total, self.total_rounds = after.over(before), number + 1


def rivals_text(finding: TuneFinding) -> str:
    """Describe the results of the rivals."""
    told = [finding.why] if finding.why else []
    for row in finding.rivals:
        name, over = row.variant.name, row.gain
        if row.failed is not None:
            told.append(f"{name} eliminated: {row.failed}")
        elif over is None:
            told.append(f"{name} was not measured")
        else:
            told.append(f"{name} {shown(over, len(row.rounds))}")
    return "; ".join(told)


def shown(over: Ratio, rounds: int) -> str:
    """Format a ratio with its interval and rounds, and whether it is within the noise."""
    if rounds == 1:
        return f"{over.value:.2f} times (one round)"
    noise = ", within the noise" if over.verdict == "same" else ""
    return f"{over.value:.2f} times ({over.low:.2f} to {over.high:.2f}, {rounds} rounds{noise})"


def _times(rival: Row) -> float:
    """Return the ratio of a rival to the current value; 0 before the first round."""
    return 0.0 if rival.gain is None else rival.gain.value


def _best_round(rival: Row) -> float:
    """Return the same in its best round."""
    assert rival.against is not None
    pairs = zip(rival.rounds, rival.against.rounds, strict=False)
    return max((ours.span.rate / theirs.span.rate for ours, theirs in pairs), default=0.0)


def _is_sure(rival: Row) -> bool:
    """Whether a rival is certainly faster than the current value."""
    return rival.gain is not None and len(rival.rounds) >= _SURE and rival.gain.verdict == "faster"


def _is_decided(rival: Row) -> bool:
    """Whether further rounds can't change the verdict on the last rival."""
    over, rounds = rival.gain, len(rival.rounds)
    if over is None or rounds > ROUNDS:
        return False
    if rounds == ROUNDS:
        return over.verdict != "same" or over.value < _LIKELY
    return _is_sure(rival) and over.low > _PLAIN_TO_SEE


def _is_near(loss: float, reference: float) -> bool:
    return isfinite(loss) and abs(loss - reference) <= LOSS_TOLERANCE * abs(reference)


def _rate(row: Row) -> str:
    return f"{row.rounds[-1].samples_per_second:,.1f}" if row.rounds else "–"


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
    rows = [row for finding in search.findings for row in finding.rivals]
    return any(
        row.failed is not None or (row.gain is not None and row.gain.verdict == "slower")
        for row in rows
        if row.variant.settings.get(COMPILE) == mode
    )


def is_better(plan: Plan, search: Search) -> bool:
    """Whether the result is better in total: single gains may not add up."""
    return bool(settings(plan, search)) and (search.total is None or search.total.value > 1)


def tuned(plan: Plan, chosen: Mapping[str, object]) -> RunConfig:
    """Return the configuration of `plan` with the result, as a profile for this model and data."""
    config = with_values(plan.config, {"data": plan.data_from_anywhere()})
    return RunConfig.model_validate(with_values(config, chosen).model_dump())


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
        "Figures: images/s of all rounds over the value then, 97 % interval, alternated rounds.",
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
        "data": plan.config.data.path or plan.config.data.name,
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
                "tried": [_described(row) for row in finding.rivals],
            }
            for finding in search.findings
        ],
        "untried": search.untried,
    }


def _described(row: Row) -> dict[str, Any]:
    over = row.gain
    return {
        "value": row.variant.name,
        "settings": dict(row.variant.settings),
        "ratio": None if over is None else over.document,
        "verdict": None if over is None else over.verdict,
        "rounds": [measured.samples_per_second for measured in row.rounds],
        "failed": row.failed,
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

    def _is_given(self, axis: TunedSetting) -> bool:
        sources = self.plan.resolved.sources
        return any(sources[key].startswith(("--", "MPTUI_")) for key in axis.keys)

    def _axis(
        self, key: str, best: Settings, values: Sequence[object], worth: float | None = None
    ) -> TunedSetting:
        """Return a setting with its current value and its rivals; its gain is the usual one, if not given."""
        current, kind = best.get(key), self.plan.device.kind
        worth = _GAINS[self._kind][key] if worth is None else worth
        rivals = {_shown(value): value for value in values if value != current}
        options = [
            Variant(
                shown,
                shown,
                {key: value},
                against=_shown(current),
                first_s=estimated_start_s(kind, shown) if key == COMPILE else 0.0,
            )
            for shown, value in rivals.items()
        ]
        return TunedSetting(key, _shown(current), tuple(options), worth)

    def _of_the_device(self, best: Settings) -> Iterator[TunedSetting]:
        native, measurable = self.plan.device.native, measurable_precisions(self.plan.device)
        modes = [str(mode) for mode in _choices("precision.mode")]
        fast = [mode for mode in modes if mode == "fp32" or native.get(mode) == "native"]
        slow = [mode for mode in modes if mode in measurable and mode not in fast]
        yield self._axis("precision.mode", best, fast)
        # emulated formats are nearly always slower, so they are tried last
        emulated = self._axis("precision.mode", best, slow, _LITTLE)
        yield replace(emulated, name=f"{emulated.name}, emulated")
        if native.get("tf32") == "native" and best["precision.mode"] == "fp32":
            yield self._axis("precision.matmul", best, ("highest", "high"))
        if self.plan.device.kind != "mps":
            for key in ("speed.channels_last", "speed.fused"):
                yield self._axis(key, best, _choices(key))
            compiled = _choices("speed.compile") if self._kind == "gpu" else ["off", "default"]
            yield self._axis("speed.compile", best, compiled)

    def _of_the_batch(self, best: Settings, first: ShortRunResult) -> Iterator[TunedSetting]:
        batch = int(str(best[BATCH]))
        micro = best.get(MICRO_BATCH, batch)
        smaller = [size for size in (batch // 2, batch // 4) if size >= 2 and size != micro]
        yield self._axis(MICRO_BATCH, {MICRO_BATCH: micro}, smaller)
        # a larger batch changes the training, unless the profile rescales the rate
        asked = self.plan.config.training
        if asked.lr_batch_size is None or MICRO_BATCH in best:
            return
        larger = [
            size for size in (2 * asked.batch_size, 4 * asked.batch_size) if self._fits(size, best, first)
        ]
        yield self._axis(BATCH, best, larger)

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
        config = with_values(asked, {"training.batch_size": batch})
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
    values: dict[str, object] = {"true": True, "false": False}
    words = SETTINGS[key].choices
    return [values.get(word, word) for word in words if word != "auto" or key == "data.cache"]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Searches the settings of a run within a time limit, from a start that fits into memory
# --------------------------------------------------------------------------------------

_RUNS = 100
"""Number of runs that the time should suffice for."""
_FEWEST = 4
"""Steps after which losses are compared if `LOSS_AT` steps would take too long."""
_SHORTEST_S, _LONGEST_S = 0.5, 3.0


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
        loss_at = int(max(_FEWEST, min(LOSS_AT, self._given_s / _RUNS * 3 / step_s)))
        self.search = Search(
            start,
            first,
            first_s=first.run_s or self.seconds,
            propose=self._tunable.axes,
            measure=self._run,
            effort=Effort(self._timed_s, loss_at),
            deadline=self.clock,
            on_line=self._on_line,
        )
        self.search.go()

    def _fitting_start(self) -> tuple[dict[str, object], ShortRunResult]:
        """Return the start and its measurement, with smaller micro-batches if it doesn't fit into memory."""
        start = self._tunable.start()
        pieces = batch = self._plan.config.training.batch_size
        while True:
            try:
                return start, self._run(start, Effort(self._timed_s, 0, self.clock.seconds_left()))
            except MeasureError as error:
                if not error.out_of_memory or pieces == 1:
                    raise _as_ours(error) from error
                pieces = (pieces + 1) // 2
                start[MICRO_BATCH] = pieces
                self._on_line(f"{BATCH} = {batch} does not fit; tries {MICRO_BATCH} = {pieces}")

    def _run(self, settings: Settings, effort: Effort) -> ShortRunResult:
        if not self.clock.seconds_left():
            raise StoppedError
        self.runs += 1
        try:
            return self._measurer.measure(self._request, settings, effort)
        except MeasureError:
            if not self.clock.seconds_left():  # it was not slow: it was the last
                raise StoppedError from None
            raise


def _as_ours(error: MeasureError) -> MptuiError:
    """Convert the error of the first run to an `MptuiError` with its exit code."""
    kind = error_of_code(error.exit_code)
    return kind(str(error), hint="check that it trains: the same with mptui run --max-steps 20")


def _free_bytes(plan: Plan) -> int | None:
    if plan.device.kind == "cpu":
        from mptui.hardware.host import host_memory

        return host_memory()[1]
    return plan.device.memory_free
