"""Formats device samples, for the cards of the first screen and the panel of the live screen."""

from textual.content import Content

from mptui import format as fmt
from mptui.events import DeviceSample
from mptui.tui.widgets.bars import bar

LABEL, FIGURE = 10, 14


def gauge(label: str, fraction: float | None, figure: str, room: int, *, label_width: int = LABEL) -> Content:
    """Return a line with a quiet label, a bar of `room` cells, and a figure aligned right."""
    return Content.assemble((label.ljust(label_width), "$quiet"), bar(fraction, room), figure.rjust(FIGURE))


def share(part: float | None, whole: float | None) -> float | None:
    """Return the fraction `part / whole`; None if one is unknown."""
    return part / whole if part is not None and whole else None


def busy(sample: DeviceSample) -> str:
    """Format the utilisation."""
    return fmt.UNKNOWN if sample.utilisation is None else f"{100 * sample.utilisation:.0f} %"


def busy_with_own(sample: DeviceSample) -> str:
    """Format the utilisation, with this process's share if known: `93 % (ours 50 %)`."""
    own = sample.utilisation_own
    return busy(sample) + ("" if own is None else f" (ours {100 * own:.0f} %)")


def power(sample: DeviceSample) -> str:
    """Format power and its limit."""
    if sample.power_w is None:
        return fmt.UNKNOWN
    if not sample.power_limit_w:
        return f"{sample.power_w:.0f} W"
    limit = f"{sample.power_limit_w:.0f}"
    return f"{sample.power_w:{len(limit)}.0f} of {limit} W"


def heat(sample: DeviceSample) -> str:
    """Format the temperature."""
    return f"{fmt.UNKNOWN if sample.temperature_c is None else f'{sample.temperature_c:.0f}'} °C"


def clock(sample: DeviceSample) -> str:
    """Format the clock rate."""
    return f"{fmt.count(sample.sm_clock_mhz)} MHz"


def throttle(sample: DeviceSample) -> Content:
    """Describe the throttling."""
    if sample.throttle:
        return Content.styled(f"throttled: {', '.join(sample.throttle)}", "$text-warning")
    return Content.styled("no throttling" if sample.sm_clock_mhz is not None else "", "$quiet")
