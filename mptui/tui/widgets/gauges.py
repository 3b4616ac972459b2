"""What a device says of itself, as lines and words: on its card before a run, and in its panel during one."""

from textual.content import Content

from mptui import format as fmt
from mptui.events import DeviceSample
from mptui.tui.widgets.bars import bar

LABEL, FIGURE = 10, 14


def gauge(label: str, fraction: float | None, figure: str, room: int, *, label_width: int = LABEL) -> Content:
    """Return a line with a quiet label, a bar of `room` cells, and a figure aligned right."""
    return Content.assemble((label.ljust(label_width), "$quiet"), bar(fraction, room), figure.rjust(FIGURE))


def share(part: float | None, whole: float | None) -> float | None:
    """Return `part` of `whole`; None where one is unknown."""
    return part / whole if part is not None and whole else None


def busy(sample: DeviceSample) -> str:
    """Say how busy the device is."""
    return fmt.UNKNOWN if sample.utilisation is None else f"{100 * sample.utilisation:.0f} %"


def busy_with_own(sample: DeviceSample) -> str:
    """Say how busy the device is, and this process's part of it where it is known: `93 % (ours 50 %)`."""
    own = sample.utilisation_own
    return busy(sample) + ("" if own is None else f" (ours {100 * own:.0f} %)")


def power(sample: DeviceSample) -> str:
    """Say what it draws, and of what."""
    if sample.power_w is None:
        return fmt.UNKNOWN
    limit = f" of {sample.power_limit_w:.0f}" if sample.power_limit_w else ""
    return f"{sample.power_w:.0f}{limit} W"


def heat(sample: DeviceSample) -> str:
    """Say how hot it is."""
    return f"{fmt.UNKNOWN if sample.temperature_c is None else f'{sample.temperature_c:.0f}'} °C"


def clock(sample: DeviceSample) -> str:
    """Say how fast its processors run."""
    return f"{fmt.count(sample.sm_clock_mhz)} MHz"


def throttle(sample: DeviceSample) -> Content:
    """Say what holds it back, if something does."""
    if sample.throttle:
        return Content.styled(f"held back: {', '.join(sample.throttle)}", "$text-warning")
    return Content.styled("no throttling" if sample.sm_clock_mhz is not None else "", "$quiet")
