"""Statistics of the difference between two precisions, and of the noise between seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Literal

from mptui.lab.bench.stats import t_quantile

TOLERANCE = 0.1
"""Difference in percentage points within which two precisions count as equal."""

Verdict = Literal["agrees", "differs", "undecided"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A precision's final metric minus FP32's, in percentage points, over the seeds.

    `low` and `high` are the 95 % confidence interval of the mean difference (paired t); None with one seed.
    """

    each: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """The verdict.

        With one seed: whether its difference is within `TOLERANCE`. With more: agrees if the whole interval
        is within it, differs if the whole interval is beyond it, else undecided.
        """
        if self.low is None or self.high is None:
            return "agrees" if abs(self.mean) <= TOLERANCE + _ROUNDING else "differs"
        if self.low >= -TOLERANCE - _ROUNDING and self.high <= TOLERANCE + _ROUNDING:
            return "agrees"
        return "differs" if self.low > TOLERANCE or self.high < -TOLERANCE else "undecided"


_ROUNDING = 1e-9


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Compare final metrics seed by seed.

    Args:
        ours: Metrics of the precision, fractions of 1.
        theirs: Metrics of FP32, by the same seeds.

    Raises:
        ValueError: There are no seeds, or the numbers differ.
    """
    each = tuple(100 * (a - b) for a, b in zip(ours, theirs, strict=True))
    if not each:
        raise ValueError("no seeds")
    middle = mean(each)
    if len(each) == 1:
        return Difference(each, middle, None, None)
    half = t_quantile(0.95, len(each) - 1) * stdev(each) / sqrt(len(each))
    return Difference(each, middle, middle - half, middle + half)


def between_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a final metric over seeds, in points; None for one seed."""
    return 100 * stdev(values) if len(values) > 1 else None
