"""A thin horizontal bar."""

import math

from textual.content import Content


def bar(fraction: float | None, width: int, style: str = "$text-accent") -> Content:
    """Return a bar of `width` cells, filled to `fraction`; only its track for None and NaN."""
    known = 0.0 if fraction is None or math.isnan(fraction) else fraction
    halves = round(2 * width * min(max(known, 0.0), 1.0))
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((filled, style), ("─" * (width - len(filled)), "$frame"))
