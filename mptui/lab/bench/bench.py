"""Measures the effect of each precision and speed setting, in an ablation of alternating rounds.

Each variant is a run in a separate process. A round measures each once, every other round in the opposite
order, so that a drift of the machine's speed favours none; ratios are computed within a round.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from mptui.lab.bench.ablation import Variant
from mptui.lab.bench.measure import Effort, MeasureError, ShortRunResult
from mptui.lab.bench.stats import Ratio, ratio, total

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

Measure = Callable[["Request", Mapping[str, object], Effort], ShortRunResult]
"""As `Measurer.measure`."""


NO_TIME = "not measured for lack of time"
_RUN_S = 6.0
"""Seconds of a run besides the timed ones, estimated before the first run."""
_SLOW_STEP, _SLOW_STEP_S = 10.0, 1.0
"""A variant is abandoned if its first step exceeds both this multiple of the baseline's and these seconds."""
_SLOW_STARTS = ("speed.compile", "data.cache", "data.workers")


def _compile_mode(variant: Variant) -> str:
    return str(variant.settings.get("speed.compile", "off"))


def _is_compiled(variant: Variant) -> bool:
    return _compile_mode(variant) != "off"


@dataclass(slots=True)
class Row:
    """A variant and its measurements by round; `failed`: why it could not be measured."""

    variant: Variant
    rounds: list[ShortRunResult] = field(default_factory=list)
    failed: str | None = None
    seconds: list[float] = field(default_factory=list)
    """Wall time of each round's run."""

    @property
    def rate(self) -> float | None:
        """Samples per second over all rounds."""
        return total(m.span for m in self.rounds).rate if self.rounds else None

    @property
    def latest(self) -> str:
        """The result of the latest round, as text."""
        return self.failed or f"{self.rounds[-1].samples_per_second:,.1f} images/s"

    @property
    def peak_bytes(self) -> float | None:
        """Median of the peak memory."""
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
    """A running ablation.

    Args:
        request: The training to measure.
        variants: The variants; the first is the baseline.
        effort: Effort of each measurement.
        measure: Measures one variant.
        compile_s: Returns the estimated seconds of compiling in a mode, in the first run of a variant.
        budget_s: Time limit in seconds.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        request: "Request",
        variants: Sequence[Variant],
        *,
        effort: Effort,
        measure: Measure,
        compile_s: Callable[[str], float] = lambda mode: 0.0,
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
        """The number of complete rounds."""
        return min((len(row.rounds) for row in self.rows if row.failed is None), default=0)

    def expected_s(self, rounds: int) -> float:
        """Estimate the seconds left until this number of rounds."""
        return sum(self._expected_s(row, rounds) for row in self.rows if row.failed is None)

    def _round_s(self) -> float:
        return sum(self._expected_s(row, len(row.rounds) + 1) for row in self.rows if row.failed is None)

    def _expected_s(self, row: Row, rounds: int) -> float:
        left = rounds - len(row.rounds)
        walls = [wall for each in self.rows for wall in each.seconds[_is_compiled(each.variant) :]]
        usual = row.seconds[-1] if row.seconds else median(walls) if walls else _RUN_S + self._effort.seconds
        first = self._compile_s(_compile_mode(row.variant)) if not row.seconds else 0.0
        return left * usual + first if left > 0 else 0.0

    def measure_rounds(self, rounds: int, tell: Callable[[Row], None]) -> bool:
        """Measure this number of rounds; return whether ctrl+c ended them early. Complete rounds count."""
        try:
            for _ in range(rounds):
                self.round(tell)
        except KeyboardInterrupt:
            return True
        return False

    def round(self, tell: Callable[[Row], None]) -> None:
        """Measure every variant once more, as far as time allows; `tell` is called after each.

        Compiled variants come last in the first round, so that they don't use up the time of the others. A
        later round starts only if there is time for all of it, as figures are compared within a round.
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
        # with the same seed, the losses are equal in each round
        loss_at = self._effort.loss_at if self._rounds == 0 else 0
        began = self._clock()
        own = self._effort.limit_s
        limit_s = min(self._until - began, inf if own is None else own)
        effort = replace(
            self._effort,
            loss_at=loss_at,
            limit_s=None if limit_s == inf else limit_s,
            first_step_limit_s=self._first_step_limit_s(row),
        )
        try:
            row.rounds.append(self._measure(self._request, row.variant.settings, effort))
            row.seconds.append(self._clock() - began)
        except MeasureError as error:
            row.failed = str(error)

    def _first_step_limit_s(self, row: Row) -> float | None:
        """Return the time limit of a first step; None if there is nothing to compare with."""
        first = self.rows[0]
        incomparable = any(row.variant.settings.get(k) != first.variant.settings.get(k) for k in _SLOW_STARTS)
        if row is first or incomparable or not first.rounds or first.rounds[0].first_step_s is None:
            return None
        return max(_SLOW_STEP_S, _SLOW_STEP * first.rounds[0].first_step_s)

    def gain(self, row: Row) -> Ratio | None:
        """Return the speed of `row` relative to the variant that it is compared with.

        For a variant without a switch, this is the loss by removing it.
        """
        other = next((r for r in self.rows if r.variant.name == row.variant.against), None)
        return self._over(row, other) if other is not None else None

    def over_baseline(self, row: Row) -> Ratio | None:
        """Return the speed of `row` relative to the baseline."""
        return self._over(row, self.rows[0])

    def off_baseline(self, row: Row) -> float | None:
        """Return the relative difference of the loss after the first steps from the baseline's.

        None if they can't be compared: with another batch size, the losses are of other samples.
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
        ours, theirs = ([m.span for m in r.rounds[:count]] for r in (row, other))
        return ratio(ours, theirs)

    def document(self) -> list[dict[str, Any]]:
        """Return all results for JSON, with the figures of each round."""
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
            "seconds": [m.span.seconds for m in row.rounds],
            "failed": row.failed,
        }
