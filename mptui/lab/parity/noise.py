"""Whether two precisions end alike, with the noise between seeds beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Literal

from mptui.lab.bench.stats import t_quantile

TOLERANCE = 0.1
"""Points (hundredths of an accuracy) within which two precisions count as equal."""

Verdict = Literal["agrees", "differs", "undecided"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A precision's final metric less FP32's, in points, over the seeds.

    `low` and `high` hold the true mean difference with 95 % confidence (paired t-interval); they are None
    with one seed, where the noise is not known.
    """

    each: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """What the seeds show.

        With one seed: whether its difference is within `TOLERANCE`. With more: agrees where the whole
        interval is within it, differs where all of the interval is beyond it, undecided otherwise.
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
        ours: Of the precision in question, fractions of 1.
        theirs: Of FP32, by the same seeds.

    Raises:
        ValueError: There are none, or not as many of each.
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
    """The standard deviation of one precision's final metric over the seeds, in points; None for one seed."""
    return 100 * stdev(values) if len(values) > 1 else None
