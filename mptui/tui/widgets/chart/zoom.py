"""Zoom and pan: the windows of steps that charts show."""

import math

from mptui.tui.widgets.chart.curve_shape import StepWindow

SMALLEST = 10
"""Smallest number of steps of a window."""

_ROUND = (1, 2, 5, 10)


def zoomed(
    window: StepWindow | None, last: float, closer: bool, centre: float | None = None
) -> StepWindow | None:
    """Return the next closer or wider window.

    Args:
        window: The window now.
        last: Last step of the run.
        closer: Whether to show fewer steps.
        centre: The step that keeps its place; None: the window keeps its end.
    """
    span = last if window is None else window.span
    rounder = _below(span) if closer else _above(span)
    if rounder >= last:
        return None
    rounder = max(SMALLEST, rounder)
    end = None if window is None else window.end
    if centre is not None:
        old_end = last if end is None else end
        end = centre + (old_end - centre) * rounder / span
    return placed(StepWindow(rounder, end), last)


def panned(window: StepWindow | None, last: float, share: float) -> StepWindow | None:
    """Return the window moved by a share of its span, to later steps if positive."""
    if window is None:
        return None
    end = last if window.end is None else window.end
    return placed(StepWindow(window.span, end + share * window.span), last)


def placed(window: StepWindow, last: float) -> StepWindow:
    """Return a window within the run; one that reaches the last step follows it."""
    if window.end is None or window.end >= last:
        return StepWindow(window.span)
    return StepWindow(window.span, round(max(window.end, window.span)))


def _below(span: float) -> float:
    """Return the largest round number (1, 2 or 5 times 10^n) of at most two thirds of `span`."""
    power = 10.0 ** math.floor(math.log10(max(span, SMALLEST)))
    return next(
        one * unit for unit in (power, power / 10) for one in reversed(_ROUND) if one * unit <= span * 2 / 3
    )


def _above(span: float) -> float:
    """Return the smallest round number that is more than `span`."""
    power = 10.0 ** math.floor(math.log10(max(span, SMALLEST)))
    return next(one * power for one in _ROUND if one * power > span)
