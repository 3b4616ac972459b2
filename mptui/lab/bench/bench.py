"""What each precision and speed setting is worth here: an ablation, measured in rounds that alternate.

Each variant is a run of its own in a process of its own. A round measures all of them once, every other
round in the opposite order, so that a machine that grows slower or faster favours none; ratios are taken
within a round.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from mptui.lab.bench.ablation import Variant
from mptui.lab.bench.measure import Effort, MeasureError, ShortRunResult
from mptui.lab.bench.stats import Ratio, ratio

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

Measure = Callable[["Request", Mapping[str, object], Effort], ShortRunResult]
"""As `Measurer.measure`."""


NO_TIME = "there was no time to measure it"
_RUN_S = 6.0
"""Seconds that a run takes beside those that are timed: what is expected before the first."""
_SLOW_STEP, _SLOW_STEP_S = 10.0, 1.0
"""A variant whose first step takes so many times the baseline's, and so many seconds, is given up."""
_SLOW_STARTS = ("speed.compile", "data.cache", "data.workers")


def _is_compiled(variant: Variant) -> bool:
    return variant.settings.get("speed.compile", "off") != "off"


@dataclass(slots=True)
class Row:
    """A variant and what was measured of it, round by round; `failed` says why it could not be."""

    variant: Variant
    rounds: list[ShortRunResult] = field(default_factory=list)
    failed: str | None = None
    seconds: list[float] = field(default_factory=list)
    """Wall time of each round's run."""

    @property
    def rate(self) -> float | None:
        """Median samples a second."""
        return median(m.samples_per_second for m in self.rounds) if self.rounds else None

    @property
    def latest(self) -> str:
        """What its latest round came to, in a few words."""
        return self.failed or f"{self.rounds[-1].samples_per_second:,.1f} images/s"

    @property
    def peak_bytes(self) -> float | None:
        """Median of the memory's peak."""
        peaks = [m.peak_bytes for m in self.rounds if m.peak_bytes is not None]
        return median(peaks) if peaks else None

    @property
    def loss(self) -> float | None:
        """The loss after the first steps."""
        losses = [m.loss for m in self.rounds if m.loss is not None]
        return median(losses) if losses else None

    @property
    def first_step_s(self) -> float | None:
        """Median time to the end of the first step."""
        seconds = [m.first_step_s for m in self.rounds if m.first_step_s is not None]
        return median(seconds) if seconds else None


class AblationRun:
    """An ablation under way.

    Args:
        request: What is trained.
        variants: What of; the first is compared with none.
        effort: For each variant in each round.
        measure: Measures one variant.
        compile_s: Seconds that the first run of a variant takes to compile: what is expected of it.
        budget_s: Seconds that all of it may take.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        request: "Request",
        variants: Sequence[Variant],
        *,
        effort: Effort,
        measure: Measure,
        compile_s: float = 0.0,
        budget_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = [Row(variant) for variant in variants]
        self._request, self._effort, self._measure = request, effort, measure
        self._compile_s, self._clock = compile_s, clock
        self._until = clock() + budget_s
        self._rounds = 0

    @property
    def rounds(self) -> int:
        """The rounds in which everything that can be measured was."""
        return min((len(row.rounds) for row in self.rows if row.failed is None), default=0)

    def expected_s(self, rounds: int) -> float:
        """The seconds that it will go on for, if it is to come to so many rounds."""
        return sum(self._expected_s(row, rounds) for row in self.rows if row.failed is None)

    def _round_s(self) -> float:
        return sum(self._expected_s(row, len(row.rounds) + 1) for row in self.rows if row.failed is None)

    def _expected_s(self, row: Row, rounds: int) -> float:
        left = rounds - len(row.rounds)
        walls = [wall for each in self.rows for wall in each.seconds[_is_compiled(each.variant) :]]
        usual = row.seconds[-1] if row.seconds else median(walls) if walls else _RUN_S + self._effort.seconds
        first = self._compile_s if _is_compiled(row.variant) and not row.seconds else 0.0
        return left * usual + first if left > 0 else 0.0

    def measure_rounds(self, rounds: int, tell: Callable[[Row], None]) -> bool:
        """Measure so many rounds; returns whether ctrl+c ended them early: what is complete still counts."""
        try:
            for _ in range(rounds):
                self.round(tell)
        except KeyboardInterrupt:
            return True
        return False

    def round(self, tell: Callable[[Row], None]) -> None:
        """Measure every variant once more, as far as there is time; `tell` is called after each.

        What compiles comes last in the first round, so that it does not take the time of all others. A later
        round is begun only where there is time for all of it: figures are compared within a round.
        """
        if self._rounds and self._round_s() > self._until - self._clock():
            return
        rows = self.rows if self._rounds % 2 == 0 else self.rows[::-1]
        for row in rows if self._rounds else sorted(rows, key=lambda row: _is_compiled(row.variant)):
            if row.failed is not None:
                continue
            if self._expected_s(row, len(row.rounds) + 1) > self._until - self._clock():
                if not row.rounds:
                    row.failed = NO_TIME
            else:
                self._run(row)
            if row.failed is not None or len(row.rounds) > self._rounds:
                tell(row)
        self._rounds += 1

    def _run(self, row: Row) -> None:
        # from one seed the losses are the same each time
        loss_at = self._effort.loss_at if self._rounds == 0 else 0
        began = self._clock()
        left = self._until - began
        effort = replace(
            self._effort,
            loss_at=loss_at,
            limit_s=None if left == inf else left,
            first_step_limit_s=self._first_step_limit_s(row),
        )
        try:
            row.rounds.append(self._measure(self._request, row.variant.settings, effort))
            row.seconds.append(self._clock() - began)
        except MeasureError as error:
            row.failed = str(error)

    def _first_step_limit_s(self, row: Row) -> float | None:
        """When a first step is too slow for the variant to be worth measuring; None: no measure of it."""
        first = self.rows[0]
        incomparable = any(row.variant.settings.get(k) != first.variant.settings.get(k) for k in _SLOW_STARTS)
        if row is first or incomparable or not first.rounds or first.rounds[0].first_step_s is None:
            return None
        return max(_SLOW_STEP_S, _SLOW_STEP * first.rounds[0].first_step_s)

    def gain(self, row: Row) -> Ratio | None:
        """How many times as fast `row` is as the variant it is compared with; below 1: slower.

        Of a variant with a switch left out this says what is lost with it.
        """
        other = next((r for r in self.rows if r.variant.name == row.variant.against), None)
        return self._over(row, other) if other is not None else None

    def over_baseline(self, row: Row) -> Ratio | None:
        """How many times as fast `row` is as the first variant."""
        return self._over(row, self.rows[0])

    def off_baseline(self, row: Row) -> float | None:
        """How far the loss after the first steps is from the first variant's, as a share of it.

        None where they can't be compared: with another batch they are losses of other samples.
        """
        batches = {r.variant.settings.get("training.batch_size") for r in (row, self.rows[0])}
        if row.loss is None or not self.rows[0].loss or len(batches) > 1:
            return None
        return row.loss / self.rows[0].loss - 1

    @staticmethod
    def _over(row: Row, other: Row) -> Ratio | None:
        count = min(len(row.rounds), len(other.rounds))
        if count == 0 or row.failed or other.failed:
            return None
        ours, theirs = ([m.samples_per_second for m in r.rounds[:count]] for r in (row, other))
        return ratio(ours, theirs)

    def document(self) -> list[dict[str, Any]]:
        """All of it as JSON's values, with each round's figures."""
        return [self._described(row) for row in self.rows]

    def _described(self, row: Row) -> dict[str, Any]:
        gain = self.gain(row)
        return {
            "name": row.variant.name,
            "title": row.variant.title,
            "settings": dict(row.variant.settings),
            "against": row.variant.against,
            "samples_per_second": row.rate,
            "ratio": None if gain is None else gain.document,
            "verdict": None if gain is None else gain.verdict,
            "peak_bytes": row.peak_bytes,
            "first_step_s": row.first_step_s,
            "loss": row.loss,
            "loss_off_baseline": self.off_baseline(row),
            "rounds": [m.samples_per_second for m in row.rounds],
            "failed": row.failed,
        }
