"""How sure a measured ratio is: medians and their intervals, without any assumption about the noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.95
ROUNDS = 6
"""The fewest rounds whose lowest and highest ratio hold the true median with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio measured in several rounds: its median, and an interval for it."""

    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """faster, slower, or same where 1 is inside the interval: a difference that may be noise."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "same"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Our figures over theirs, round by round; both sides of a round were measured one after the other.

    The interval is that of the sign test: between the k-th lowest and the k-th highest ratio, with the
    largest k that keeps 95 % (Conover, Practical Nonparametric Statistics, 3.2).

    Raises:
        ValueError: There are no rounds, or not as many of each.
    """
    each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    if not each:
        raise ValueError("no rounds")
    left_out = _left_out(len(each))
    return Ratio(median(each), each[left_out], each[-1 - left_out])


def _left_out(count: int) -> int:
    """How many of the lowest, and of the highest, can be left out of the interval."""
    left_out, outside = 0, 1 / 2**count
    while True:
        outside += comb(count, left_out + 1) / 2**count
        if 2 * outside > 1 - CONFIDENCE or 2 * (left_out + 1) >= count:
            return left_out
        left_out += 1
