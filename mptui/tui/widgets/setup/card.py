"""A device as a card: identity, load, who is on it, precisions and recommendation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from mptui import format as fmt
from mptui.events import DeviceProcess, DeviceSample
from mptui.text import clean
from mptui.tui.setup.device_samplers import DeviceReading
from mptui.tui.widgets import gauges

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine

_GAP = "   "
_LABEL, _FIGURE = 7, 18
_TWO_COLUMNS = 60
"""Width in cells from which two gauges share a line."""
_FRAME = 2
"""Cells of the border on two sides, and of the padding."""
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_LEAST_HISTORY, _MOST_HISTORY = 2, 10
"""Height in lines of a history."""
_HISTORIES: Mapping[str, Callable[[DeviceSample], float | None]] = {
    "busy, one sample a second": lambda sample: sample.utilisation,
    "memory in use": lambda sample: gauges.share(sample.memory_used, sample.memory_total),
    "power, of its limit": lambda sample: gauges.share(sample.power_w, sample.power_limit_w),
}
"""Title -> share of 1, in the order in which they are shown where there is room."""


@dataclass(frozen=True, slots=True)
class CardDevice:
    """What a card shows: a device, the recommendation for it, and its machine."""

    device: "Device"
    advice: "Recommendation"
    machine: "Machine"


class DeviceCard(Static):
    """One device with all details, and its history where there is room."""

    DEFAULT_CSS = """
    DeviceCard {
        display: none;
        padding: 0 1;
        border: round $accent;
        border-title-color: $text-accent;
        border-title-style: bold;
        border-subtitle-color: $quiet;
        &.-marked { border-title-color: $text-success; }
        &.-bare { border: none; }
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._of: CardDevice | None = None
        self._reading = DeviceReading(DeviceSample(name=""))
        self._reason: str | None = None
        self._alone = False
        self._shown = Content("")

    def open(self, of: CardDevice, *, marked: bool, alone: bool) -> None:
        """Show a device; `alone`: with gauges, as no table shows its load."""
        self._of, self._alone, self.display = of, alone, True
        self.set_class(marked, "-marked")
        title = clean(f"{of.device.torch_name}  {of.device.name}", 60)
        self.border_title = Content(f"✓ {title}" if marked else title)

    def show(self, reading: DeviceReading, reason: str | None) -> None:
        """Show the latest sample, or why there is none, and why it is the default device."""
        self._reading, self._reason = reading, reason
        self.redraw()

    def redraw(self) -> None:
        """Redraw if something has changed."""
        width, height = self.content_size
        if self._of is None or width <= 0:
            return
        lines = _most_important(self._lines(self._of, width), width, height)
        left = height - _height(lines, width)
        content = Content("\n").join([*lines, *self._more(width, left)])
        if not content.is_same(self._shown):
            self._shown = content
            self.update(content, layout=False)

    def on_resize(self) -> None:
        """Lay out in the new size."""
        self.redraw()

    def needed(self, width: int) -> int:
        """Return the height in which a card of this width has room for all but the history."""
        if self._of is None:
            return 0
        width -= 2 * _FRAME
        return _FRAME + _height([line for _, line in self._lines(self._of, width)], width)

    def _lines(self, of: CardDevice, width: int) -> list[tuple[int, Content]]:
        """Return the lines, each with its rank: the highest is left out first."""
        from mptui.hardware.describe import describe

        told = describe(of.device, of.advice, of.machine)
        sample, problem = self._reading.sample, self._reading.problem
        usable = of.device.usable
        tone = "$quiet" if usable else "$text-warning"
        load = _live(sample, width) if self._alone else [_figures(sample)]
        warning = Content.styled(clean(problem or "") if of.device.kind != "cpu" else "", "$text-warning")
        ranked = [
            (5, Content.styled(clean(told.identity), "$quiet")),
            *((4, line) for line in load),
            (1, warning),
            (3, self._company(of.device)),
            (6, _formats(told.formats)),
            (0, _use(clean(told.use))),
            (2, Content(clean(told.start))),
            (7, Content.styled(clean(self._reason or ""), "$quiet")),
            *((8 if usable else 1, Content.styled(clean(note), tone)) for note in told.notes),
        ]
        return [(rank, line) for rank, line in ranked if line.plain]

    def _company(self, device: "Device") -> Content:
        """Describe throttling, and other processes on the device."""
        from mptui.hardware.describe import others_on

        words = clean(others_on(_processes(self._reading, device)))
        others = Content.styled(words, "$quiet" if words.startswith("no ") else "$text-warning")
        return Content(_GAP).join(
            part for part in (gauges.throttle(self._reading.sample), others) if part.plain
        )

    def _more(self, width: int, height: int) -> list[Content]:
        """Return what fills `height` lines: all processes if there are several, and histories."""
        processes = self._reading.sample.processes or []
        lines = _people(processes, width) if len(processes) > 1 else []
        lines = lines if len(lines) <= height else []
        for title, part in _HISTORIES.items():
            shares = [share for sample in self._reading.past if (share := part(sample)) is not None]
            rows = min(height - len(lines) - 1, _MOST_HISTORY)
            if shares and rows >= _LEAST_HISTORY:
                lines += [Content.styled(title, "$quiet"), *_area(shares[-width:], width, rows)]
        return lines


def _processes(reading: DeviceReading, device: "Device") -> Sequence[DeviceProcess] | None:
    """Return the processes of the latest sample, else those that were there when the device was detected."""
    if reading.sample.processes is not None or device.gpu is None:
        return reading.sample.processes
    return device.gpu.processes


def _most_important(ranked: list[tuple[int, Content]], width: int, height: int) -> list[Content]:
    """Return the lines that fit into `height`, in their order; at least one."""
    lines = list(ranked)
    while len(lines) > 1 and _height([line for _, line in lines], width) > height:
        lines.remove(max(lines, key=lambda line: line[0]))
    return [line for _, line in lines]


def _height(lines: Sequence[Content], width: int) -> int:
    return sum(len(line.wrap(width)) for line in lines)


def _live(sample: DeviceSample, width: int) -> list[Content]:
    """Return gauges of all values that the device reports, two per line if they fit."""
    columns = 2 if width >= _TWO_COLUMNS else 1
    room = (width - (columns - 1) * len(_GAP)) // columns - _LABEL - _FIGURE
    memory = f"{_gib(sample.memory_used)} of {_gib(sample.memory_total)} GiB"

    def gauge(label: str, fraction: float | None, figure: str) -> Content:
        return gauges.gauge(label, fraction, figure.rjust(_FIGURE), room, label_width=_LABEL)

    bars = [
        gauge("memory", gauges.share(sample.memory_used, sample.memory_total), memory),
        gauge("busy", sample.utilisation, gauges.busy_with_own(sample)),
    ]
    if sample.power_w is not None:
        share = gauges.share(sample.power_w, sample.power_limit_w)
        bars.append(gauge("power", share, gauges.power(sample)))
    lines = [Content(_GAP).join(bars[at : at + columns]) for at in range(0, len(bars), columns)]
    if sample.temperature_c is None:
        return lines
    heat = Content(f"{gauges.heat(sample)}{_GAP}{gauges.clock(sample)}")
    if columns == 2 and len(bars) % 2:
        return [*lines[:-1], Content.assemble(lines[-1], _GAP, heat)]
    return [*lines, heat]


def _figures(sample: DeviceSample) -> Content:
    """Return in one line what the table has no room for."""
    if sample.power_w is None and sample.temperature_c is None:
        own = sample.utilisation_own
        return Content("" if own is None else f"busy {gauges.busy_with_own(sample)}")
    return Content(_GAP.join([gauges.power(sample), gauges.heat(sample), gauges.clock(sample)]))


def _people(processes: Sequence[DeviceProcess], width: int) -> list[Content]:
    """Return a line for each process: memory, PID, user and program."""
    lines = []
    for each in processes:
        who = clean(f"{each.user or fmt.UNKNOWN}  {each.command or fmt.UNKNOWN}")
        line = Content(f"{fmt.size(each.memory):>10}  {each.pid:>8}  {who}")
        lines.append(line.truncate(width, ellipsis=True))
    return [Content.styled(f"{'memory':>10}  {'pid':>8}  on this device", "$quiet"), *lines]


def _area(shares: Sequence[float], width: int, rows: int) -> list[Content]:
    """Return fractions of 1 as columns, `rows` lines high, the last at the right of `width` cells."""
    top = len(_HEIGHTS) - 1
    levels = [max(1, round(min(max(share, 0.0), 1.0) * rows * top)) for share in shares]
    lines = [
        "".join(_HEIGHTS[min(max(level - top * row, 0), top)] for level in levels)
        for row in reversed(range(rows))
    ]
    return [Content.styled(line.rjust(width), "$text-accent") for line in lines]


def _gib(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value / (1 << 30):.1f}"


def _formats(formats: tuple[str, ...]) -> Content:
    return Content(_GAP).join(
        Content.styled(words, "$text-success" if words.endswith(" native") else "$quiet") for words in formats
    )


def _use(words: str) -> Content:
    head, colon, reason = words.partition(":")
    return Content.assemble((head, "bold"), (colon + reason, ""))
