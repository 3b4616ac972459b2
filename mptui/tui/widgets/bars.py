"""Bars and sparklines, thin enough to stay calm."""

from collections.abc import Sequence

from textual.content import Content

_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(fraction: float | None, width: int, style: str = "$text-accent") -> Content:
    """Return a bar of `width` cells, filled to `fraction`; only its track for None."""
    halves = round(2 * width * min(max(fraction or 0.0, 0.0), 1.0))
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((filled, style), ("─" * (width - len(filled)), "$frame"))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as heights between their smallest and largest."""
    values = values[-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_HEIGHTS) - 1) / (high - low) if high > low else 0.0
    return "".join(_HEIGHTS[round((value - low) * scale)] for value in values)
