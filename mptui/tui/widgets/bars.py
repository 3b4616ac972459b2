"""Bars and sparklines, thin enough to stay calm."""

import math
from collections.abc import Sequence

from textual.content import Content

_HEIGHTS = "▁▂▃▄▅▆▇█"
_LARGEST = 1e100  # the differences of larger numbers may be none


def bar(fraction: float | None, width: int, style: str = "$text-accent") -> Content:
    """Return a bar of `width` cells, filled to `fraction`; only its track for None and NaN."""
    known = 0.0 if fraction is None or math.isnan(fraction) else fraction
    halves = round(2 * width * min(max(known, 0.0), 1.0))
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((filled, style), ("─" * (width - len(filled)), "$frame"))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as heights between their smallest and largest; `×` is no number."""
    values = values[-width:]
    finite = [value for value in values if abs(value) < _LARGEST]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span, top = (high - low) or 1.0, len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round((v - low) / span * top)] if abs(v) < _LARGEST else "×" for v in values)
