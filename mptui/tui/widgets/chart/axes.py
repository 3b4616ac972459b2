"""Axes with round numbers: ticks, labels and ranges."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mptui import format as fmt

Floats = NDArray[np.float64]

_LONGEST = 7
"""Cells from which on a percentage has no space."""


def nice_step(span: float, ticks: int) -> float:
    """Return the round number (1, 2, 2.5 or 5 times 10^n) that divides `span` into about `ticks`."""
    rough = span / max(1, ticks)
    power: float = 10.0 ** math.floor(math.log10(rough))
    return power * next(round_one for round_one in (1, 2, 2.5, 5, 10) if rough <= round_one * power * 1.0001)


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis from `low` to `high`; on a log axis, both are exponents of ten."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    percent: bool = False

    def rows(self, values: Floats, rows: int) -> NDArray[np.intp]:
        """Return the dot row of each value, 0 on top; what has no place (NaN) lands on row 0."""
        share = np.clip(np.nan_to_num(self._shares(values)), 0, 1)
        row: NDArray[np.intp] = np.rint(share * (rows - 1)).astype(np.intp)
        return row

    def above(self, values: Floats) -> NDArray[np.bool_]:
        """Return which values lie above the axis, by more than rounding."""
        return np.asarray(self._shares(values) < -1e-6)

    def _shares(self, values: Floats) -> Floats:
        """Return the place of each value as a share of the axis, 0 on top."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            position = np.log10(values) if self.log else values
            shares: Floats = (self.high - position) / (self.high - self.low)
        return shares

    def row(self, value: float, rows: int) -> int:
        """Return the row of one value."""
        return int(self.rows(np.array([value]), rows)[0])

    def label(self, tick: float) -> str:
        """Format a tick with as many digits as the ticks need to differ: `1.50`, `3k`, `2.5e-5`, `80 %`."""
        if self.percent and (self.log or tick in (0, 1)):
            return f"{100 * tick:.4g} %"
        if tick == 0:
            return "0"
        if self.log:
            return fmt.short(tick) if abs(tick) >= 1e-3 else _power(tick)
        largest, step = max(map(abs, self.ticks)), self.ticks[-1] - self.ticks[0]
        step = step / (len(self.ticks) - 1) if len(self.ticks) > 1 else largest
        if self.percent:
            label = f"{100 * tick:.{_digits(100 * step)}f} %"
            return label if len(label) < _LONGEST else label.replace(" ", "")
        if largest < 1e-3:
            return _power(tick)
        return fmt.short(tick) if largest >= 1e4 else f"{tick:.{_digits(step)}f}"


def _power(value: float) -> str:
    """Return a short text in powers of ten: `1e-5`, `2.5e-5`."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _digits(step: float) -> int:
    """Return the decimals of a round step: 0 for 5, 1 for 0.5, 2 for 0.25; at most 5."""
    return next((digits for digits in range(5) if abs(round(step, digits) - step) < step / 1e6), 5)


def linear_axis(low: float, high: float, rows: int, percent: bool = False) -> Axis:
    """Return an axis over `low` to `high`, widened to quarters of a tick, with about 2 to 6 ticks.

    That of percentages stays within 0 % and 100 %, unless a value lies beyond.
    """
    least, most = (min(low, 0.0), max(high, 1.0)) if percent else (-math.inf, math.inf)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(high) / 2 if abs(high) > 1e-100 else 1.0
        low, high = max(low - margin, least), min(high + margin, most)
    step = nice_step(high - low, max(2, min(6, rows // 2)))
    quarter = step / 4
    first, last = math.floor(low / quarter + 1e-9) * quarter, math.ceil(high / quarter - 1e-9) * quarter
    last = min(last, most)
    numbers = range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)
    return Axis(first, last, tuple(round(i * step, 12) for i in numbers), percent=percent)


def log_axis(low: float, high: float, percent: bool = False) -> Axis:
    """Return a log axis over positive `low` to `high`, widened to 1, 2 or 5 times powers of ten."""
    rounds = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
        for factor in (1, 2, 5)
    ]
    start = max(i for i, tick in enumerate(rounds) if tick <= low * 1.0001)
    stop = min(i for i, tick in enumerate(rounds) if tick >= high * 0.9999 and i > start)
    ticks = rounds[start : stop + 1]
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1.0")]
    ends = math.log10(rounds[start]), math.log10(rounds[stop])
    return Axis(*ends, tuple(ticks), log=True, percent=percent)


def end_of_steps(last: float) -> float:
    """Return the end of a step axis: `last` rounded up coarsely, so that the axis rarely changes."""
    if last <= 0:
        return 1.0
    quantum = max(1.0, nice_step(last, 20))
    return math.ceil(last / quantum) * quantum


def step_ticks(first: float, last: float, width: int) -> list[tuple[float, str]]:
    """Return round whole steps from `first` to `last` with distinct labels, one per about 12 cells."""
    if last <= first:
        return [(first, fmt.short(first))]
    step = nice_step(max(1.0, (last - first) / max(1, width // 12)), 1)
    step = max(1.0, 5.0 if step == 2.5 else step)
    ticks = [i * step for i in range(math.ceil(first / step), math.floor(last / step) + 1)]
    labels = list(map(fmt.short, ticks))
    if len(set(labels)) < len(labels):
        labels = [f"{tick:,.0f}" for tick in ticks]
    return list(zip(ticks, labels, strict=True))
