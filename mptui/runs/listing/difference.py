"""The difference between a run and its fork: whose steps are faster, whose loss is lower, and by how much.

Nothing is claimed before there are `STEPS` steps with `VALUES` values of both. Speeds are even if their
middle halves overlap, losses if zero is among the middle 80 % of their differences.
"""

from dataclasses import dataclass

import numpy as np

from mptui import format as fmt
from mptui.runs.view.history import CAPACITY, Floats, History
from mptui.runs.view.labels import LOSS, TRAIN
from mptui.runs.view.run_view import RunView

STEPS = 20
"""Steps from the fork on before anything is claimed."""

VALUES = 8
"""Values to compare before anything is claimed: a fast run reports many steps as one value."""

_PLACES = 64
"""Largest number of places at which two curves are compared, whatever their length."""


@dataclass(frozen=True, slots=True)
class ForkDifference:
    """How a fork differs from its parent.

    Attributes:
        names: The precisions of fork and parent; "fork" and "its parent" if they are the same.
        ratio: Images a second of the fork, divided by those of its parent; 1: even; None: not known.
        loss: Its training loss less that of its parent at equal steps; 0: even; None: not known.
        step: The last step that both have.
    """

    names: tuple[str, str]
    ratio: float | None
    loss: float | None
    step: float

    @property
    def sentence(self) -> str:
        """All that is known: `bf16 is 1.9x ahead of fp32, loss +0.002 at step 3,120`; "" if nothing is."""
        step = f" at step {fmt.count(self.step)}" if self.loss is not None else ""
        return self._words(f" of {self.names[1]}", f" with {self.names[1]}") + step

    @property
    def title(self) -> str:
        """The same for a line with other things: `bf16 is 1.9x ahead, loss +0.002`."""
        return self._words("", "")

    @property
    def short(self) -> str:
        """The same for a narrow line: `1.9x ahead, loss +0.002`."""
        return ", ".join(word for word in (self._speed("", ""), self._loss()) if word)

    def _words(self, of: str, beside: str) -> str:
        words = ", ".join(word for word in (self._speed(of, beside), self._loss()) if word)
        joined = " is " if self.ratio not in {None, 1.0} else ": "
        return f"{self.names[0]}{joined}{words}" if words else ""

    def _speed(self, of: str, beside: str) -> str:
        if self.ratio is None:
            return ""
        if self.ratio == 1:
            return f"speed even{beside}"
        far = max(self.ratio, 1 / self.ratio)
        times = f"{far:.1f}x" if far >= 1.1 else f"{far:.2f}x"
        return f"{times} ahead{of}" if self.ratio > 1 else f"{times} behind{of.removeprefix(' of')}"

    def _loss(self) -> str:
        if self.loss is None:
            return ""
        return f"loss {self.loss:+.2g}" if self.loss else "loss even"


def difference(parent: RunView, fork: RunView, since: int) -> ForkDifference:
    """Compare a fork with its parent from the step of the fork on."""
    differ = parent.precision != fork.precision
    names = (fork.precision, parent.precision) if differ else ("fork", "its parent")
    speeds, losses = (
        (parent.histories.get(chart, {}).get(label), fork.histories.get(chart, {}).get(label))
        for chart, label in (("speed", "images/s"), (LOSS, TRAIN))
    )
    step = min((each.end_x for each in losses if each is not None), default=0.0)
    return ForkDifference(names, _ratio(*speeds, since), _gap(*losses, since), step)


def _ratio(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare speeds over the steps that both have trained, else with those of the parent before the fork."""
    if parent is None or fork is None or fork.end_x - since < STEPS:
        return None
    end = min(parent.end_x, fork.end_x)
    mine, its = (_values(each, since + 1, end) for each in (fork, parent))
    if min(mine.size, its.size) < VALUES:
        mine = _values(fork, since + 1, fork.end_x)
        its = _values(parent, 2 * since - fork.end_x, since)
    if min(mine.size, its.size) < VALUES:
        return None
    (low, middle, high), (its_low, its_middle, its_high) = (
        np.percentile(each, (25, 50, 75)).tolist() for each in (mine, its)
    )
    if low <= its_high and its_low <= high:
        return 1.0
    return float(middle / its_middle) if its_middle > 0 and middle > 0 else None


def _gap(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare losses at the same places, over the later half of the steps that both have."""
    if parent is None or fork is None:
        return None
    end = min(parent.end_x, fork.end_x)
    fewer = min(_values(each, since + 1, end, CAPACITY).size for each in (parent, fork))
    places = min(_PLACES, fewer // 2)  # each with values of both, which report at different steps
    if end - since < STEPS or places < VALUES:
        return None
    mine, its = (each.columns(since + 1, end, places).mean for each in (fork, parent))
    gaps = (mine - its)[-max(places // 2, VALUES) :]
    gaps = gaps[np.isfinite(gaps)]
    if gaps.size < VALUES:
        return None
    low, middle, high = np.percentile(gaps, (10, 50, 90)).tolist()
    return 0.0 if low <= 0 <= high else float(middle)


def _values(history: History, first: float, last: float, places: int = _PLACES) -> Floats:
    """Return the means of a history at up to so many places from step `first` to `last`."""
    means = history.columns(first, last, places).mean if last >= first else np.zeros(0)
    return means[np.isfinite(means)]
