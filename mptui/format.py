"""Formats figures for display: always with units; unknown values as `–`, never 0."""

import math
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

UNKNOWN = "–"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_LARGEST = 1e100  # larger values have no meaningful differences in float64


class _Column(Protocol):
    """A column of a table: its cells, and its place among those that can be left out; 0: never."""

    @property
    def width(self) -> int: ...

    @property
    def leave(self) -> int: ...


_C = TypeVar("_C", bound=_Column)


def count(value: float | None) -> str:
    """Return a whole number with separators: 14,302; below 1 with three significant digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1 or value == 0 else figure(value)


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 epoch, 1,200 epochs; of a noun whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(value: float) -> str:
    """Return an abbreviated count: 950, 3k, 1.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


def figure(value: float | None) -> str:
    """Return three significant digits: 1.24, 0.0123, 3.1e-05, nan."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        digits = 2 if abs(value) < 1e-9 else max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{min(digits, 5)}f}"
    return f"{value:.1e}"


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 as a percentage with one decimal: 76.4 %."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f} %"


def size(value: float | None) -> str:
    """Return bytes in a binary unit: 52.1 GiB, 98 MiB."""
    if value is None:
        return UNKNOWN
    if value >= 1 << 30:
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value / (1 << 20):.0f} MiB"


def milliseconds(seconds: float | None) -> str:
    """Return a short duration: 84.2 ms, or 3.20 s from 10 s on."""
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:.2f} s"


def duration(seconds: float | None, *, aligned: bool = False) -> str:
    """Return a duration in its two largest units: 2 h 14 min, 3 min 20 s, 45 s.

    `aligned` pads the second figure to two cells, so that a counting duration keeps its width.
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, round(seconds))
    days, hours = divmod(whole // 3600, 24)
    minutes, rest = whole // 60 % 60, whole % 60
    width = 2 if aligned else 1
    if days:
        return f"{days} d {hours:{width}} h"
    if hours:
        return f"{hours} h {minutes:{width}} min"
    return f"{minutes} min {rest:{width}} s" if minutes else f"{rest} s"


def clock(moment: float, seconds: bool = False) -> str:
    """Return the local time of day of `moment` (seconds since the epoch)."""
    try:
        local = time.localtime(moment)
    except (ValueError, OverflowError, OSError):  # not a number, or beyond datetime's range
        return UNKNOWN
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", local)


def sparkline(values: Sequence[float], among: Sequence[float] | None = None) -> str:
    """Return values as bars from the smallest to the largest of `among` (or of them); × is no number."""
    finite = [value for value in among or values if abs(value) < _LARGEST]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span, top = (high - low) or 1.0, len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round((v - low) / span * top)] if abs(v) < _LARGEST else "×" for v in values)


def fitting(columns: Sequence[_C], width: int, gap: int = 0) -> list[_C]:
    """Return the columns that fit into `width` cells; those with the largest `leave` are left out first."""
    shown = list(columns)
    while sum(column.width + gap for column in shown) - gap > width:
        last = max(shown, key=lambda column: column.leave, default=None)
        if last is None or not last.leave:
            break
        shown.remove(last)
    return shown
