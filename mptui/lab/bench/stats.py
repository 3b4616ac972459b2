"""How sure a measured ratio is: its median, and an interval for few rounds on a busy machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import mean, median, stdev

ROUNDS = 6
"""Rounds that tell a tenth's difference from the noise of a busy machine, with one round gone astray."""

_TRIMMED = 0.2
# Student's t, two-sided 97 %, by degrees of freedom from 1: of so few rounds a trimmed interval holds the
# truth about a percent less often than it says, and the noise of a machine that drifts is not independent.
_T = (
    *(21.2, 5.64, 3.9, 3.3, 3.0, 2.83, 2.71, 2.63, 2.57, 2.53),
    *(2.49, 2.46, 2.44, 2.41, 2.4, 2.38, 2.37, 2.36, 2.35, 2.34),
    *(2.33, 2.32, 2.31, 2.31, 2.3, 2.3, 2.29, 2.29, 2.28, 2.28),
)


def rounds_text(rounds: int) -> str:
    """What a figure is, above a table, and what too few rounds are not good for."""
    sure = "" if rounds >= ROUNDS else f", too few to tell noise from a difference: use --rounds {ROUNDS}"
    return f"median of {rounds} round{'s' if rounds > 1 else ''}{sure}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio measured in several rounds: its median, and an interval for it (0 to inf after one round)."""

    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """faster, slower, or same where 1 is inside the interval: a difference that may be noise."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "same"

    @property
    def document(self) -> dict[str, float | None]:
        """As JSON's values; an interval without ends has none."""
        ends = {"low": self.low, "high": self.high} if self.high < inf else {"low": None, "high": None}
        return {"median": self.median, **ends}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Our figures over theirs, round by round; both sides of a round were measured one after the other.

    The interval is Yuen's for a mean whose lowest and highest fifth are left out (K. Yuen, "The two-sample
    trimmed t for unequal population variances", Biometrika 61, 1974), of the logarithms: from five rounds on
    one that something else has slowed down neither moves nor widens it much.

    Raises:
        ValueError: There are no rounds, or not as many of each.
    """
    logs = sorted(log(a / b) for a, b in zip(ours, theirs, strict=True))
    if not logs:
        raise ValueError("no rounds")
    middle = median(logs)
    if len(logs) == 1:
        return Ratio(exp(middle), 0.0, inf)
    centre, half = _trimmed(logs)
    return Ratio(exp(middle), exp(min(middle, centre - half)), exp(max(middle, centre + half)))


def _trimmed(ordered: Sequence[float]) -> tuple[float, float]:
    """The trimmed mean of ordered values, and half of its interval's width."""
    count = len(ordered)
    cut = int(_TRIMMED * count)
    kept = ordered[cut : count - cut]
    drawn_in = [kept[0]] * cut + list(kept) + [kept[-1]] * cut
    left = len(kept)
    error = stdev(drawn_in) * sqrt((count - 1) / (left * (left - 1)))
    return mean(kept), _T[min(left - 1, len(_T)) - 1] * error
