"""Rates of measured spans, and their ratio with a confidence interval, for few rounds on a busy machine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from statistics import mean, stdev
from typing import NamedTuple

ROUNDS = 6
"""Rounds that distinguish a difference of 10 % from the noise of a busy machine, with one outlier."""

_TRIMMED = 0.2
# Above the usual 95 %: of so few rounds a trimmed interval holds the truth about a percent less often than
# it says, and the noise of a machine that drifts is not independent.
_CONFIDENCE = 0.97


def rounds_text(rounds: int) -> str:
    """Describe the figures of a table, with a warning if there are too few rounds."""
    sure = "" if rounds >= ROUNDS else f", too few to tell noise from a difference: use --rounds {ROUNDS}"
    return f"{rounds} round{'s' if rounds > 1 else ''}{sure}"


class Span(NamedTuple):
    """Samples that were trained on, and the seconds that this took, with whatever held them up."""

    samples: float
    seconds: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def total(spans: Iterable[Span]) -> Span:
    """Return the sum of spans, whose rate weighs each by its time: a stall counts as long as it was."""
    samples, seconds = zip(*spans, strict=True)
    return Span(sum(samples), sum(seconds))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two total rates, with an interval for it (0 to inf after one round)."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """faster, slower, or same if the interval contains 1: the difference may be noise."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "same"

    @property
    def document(self) -> dict[str, float | None]:
        """Return the ratio for JSON; infinite ends are null."""
        ends = {"low": self.low, "high": self.high} if self.high < inf else {"low": None, "high": None}
        return {"value": self.value, **ends}


def ratio(ours: Sequence[Span], theirs: Sequence[Span]) -> Ratio:
    """Return the ratio of our total rate to theirs; the two sides of a round were measured in turn.

    The interval is Yuen's for the trimmed mean of the logarithms, without the lowest and highest fifth (K.
    Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61, 1974): from five rounds
    on, one outlier moves it little. It is widened to hold the ratio of the totals, which counts each outlier:
    whether other work on the machine or the setting itself held up that round can't be known.

    Raises:
        ValueError: There are no rounds, or their numbers differ.
    """
    logs = sorted(log(a.rate / b.rate) for a, b in zip(ours, theirs, strict=True))
    if not logs:
        raise ValueError("no rounds")
    value = total(ours).rate / total(theirs).rate
    if len(logs) == 1:
        return Ratio(value, 0.0, inf)
    centre, half = _trimmed(logs)
    return Ratio(value, min(value, exp(centre - half)), max(value, exp(centre + half)))


def _trimmed(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the trimmed mean of ordered values, and half the width of its interval."""
    count = len(ordered)
    cut = int(_TRIMMED * count)
    trimmed = ordered[cut : count - cut]
    winsorized = [trimmed[0]] * cut + list(trimmed) + [trimmed[-1]] * cut
    left = len(trimmed)
    error = stdev(winsorized) * sqrt((count - 1) / (left * (left - 1)))
    return mean(trimmed), t_quantile(_CONFIDENCE, left - 1) * error


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """Between minus this value and this value lies Student's t with probability `confidence`.

    Found by bisection of the distribution's finite series (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 26.7.3 and 26.7.4).

    Args:
        confidence: Above 0 and below 1.
        freedom: Degrees of freedom, from 1.
    """
    odd = freedom % 2

    def within(angle: float) -> float:
        term, total = cos(angle) ** odd, 0.0
        for power in range(odd, freedom - 1, 2):
            total += term
            term *= (power + 1) / (power + 2) * cos(angle) ** 2
        return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return sqrt(freedom) * tan(low)
