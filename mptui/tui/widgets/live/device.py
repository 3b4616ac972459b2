"""The device panel: utilisation, memory, power, temperature, throttling."""

from textual.content import Content

from mptui import format as fmt
from mptui.events import DeviceSample
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.gauges import (
    FIGURE,
    LABEL,
    busy,
    busy_with_own,
    clock,
    gauge,
    heat,
    power,
    share,
    throttle,
)
from mptui.tui.widgets.panel import Lines, Panel


class DevicePanel(Panel):
    """The current load of the device; the title is its name."""

    DEFAULT_CSS = "DevicePanel { height: 7; }"

    def __init__(self) -> None:
        super().__init__("device")

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the panel."""
        self.retitle(_title(view))
        sample = view.device or DeviceSample(name="")
        room = width - LABEL - FIGURE
        return [
            gauge("busy", sample.utilisation, busy(sample), room),
            gauge(
                "memory", share(sample.memory_used, sample.memory_total), fmt.size(sample.memory_used), room
            ),
            Content.styled(_memory(sample), "$quiet"),
            gauge("power", share(sample.power_w, sample.power_limit_w), power(sample), room),
            _state(sample),
        ]


def device_line(view: RunView) -> list[Content]:
    """Return parts of one line for a small screen; throttling is never omitted."""
    sample = view.device or DeviceSample(name="")
    total = f" of {fmt.size(sample.memory_total)}" if sample.memory_total else ""
    memory = f"{fmt.size(sample.memory_used)}{total}"
    figures = [
        Content(each) for each in (f"busy {busy_with_own(sample):>5}", memory, power(sample), heat(sample))
    ]
    figures.insert(1 if sample.throttle else len(figures), throttle(sample))
    return figures


def _title(view: RunView) -> str:
    if view.started is None:
        return view.device.name if view.device and view.device.name else "device"
    return f"{view.started.device}  {view.started.device_name}"


def _state(sample: DeviceSample) -> Content:
    """Format temperature, clock and throttling; for a CPU, which has none of these, the load by owner."""
    if sample.utilisation is not None and sample.utilisation_own is not None:
        others = max(0.0, sample.utilisation - sample.utilisation_own)
        return Content(
            f"busy with: ours {100 * sample.utilisation_own:3.0f} %   others {100 * others:3.0f} %"
        )
    return Content.assemble(f"{heat(sample)}   {clock(sample)}   ", throttle(sample))


def _memory(sample: DeviceSample) -> str:
    used, own, total = sample.memory_used, sample.memory_own, sample.memory_total
    others = used - own if used is not None and own is not None else None
    free = total - used if used is not None and total is not None else None
    return f"  ours {_gib(own):>4}   others {_gib(others):>4}   free {_gib(free):>5} GiB"


def _gib(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value / (1 << 30):.1f}"
