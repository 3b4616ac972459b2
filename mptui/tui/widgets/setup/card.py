"""A device as a card: name, latest sample, precisions and recommendation."""

from typing import TYPE_CHECKING

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from mptui import format as fmt
from mptui.events import DeviceSample
from mptui.text import clean
from mptui.tui.widgets import gauges

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine

_GAP = "   "
_LABEL, _FIGURE = 7, 18
_NAME = 24
"""Width in cells of the name in a line."""
_TWO_COLUMNS = 60
"""Width in cells from which two gauges share a line."""


class DeviceCard(Static):
    """One device; the chosen one with all details, the others in brief."""

    DEFAULT_CSS = """
    DeviceCard {
        height: auto;
        padding: 0 1;
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
        &.-line { border: none; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        &.-marked { border-title-color: $text-success; }
        &.-chosen { border: round $accent; border-title-color: $text-accent; border-title-style: bold; }
    }
    """

    class Pressed(Message):
        """The card was clicked."""

        def __init__(self, card: "DeviceCard") -> None:
            super().__init__()
            self.card = card

    def __init__(self, device: "Device", advice: "Recommendation", machine: "Machine") -> None:
        super().__init__(markup=False)
        self.device = device
        self._advice, self._machine = advice, machine
        self._sample: DeviceSample | None = None
        self._problem: str | None = None
        self._shown = Content("")
        self._title = clean(f"{device.torch_name}  {device.name}", 60)

    def lay_out(self, *, chosen: bool, marked: bool, line: bool) -> None:
        """Show the device as chosen or marked, or in a single line."""
        for name, holds in (("-chosen", chosen), ("-marked", marked), ("-line", line)):
            self.set_class(holds, name)
        self.border_title = Content(f"✓ {self._title}" if marked else self._title)
        self.redraw()

    def show(self, sample: DeviceSample | None, problem: str | None) -> None:
        """Show the latest sample, or why there is none."""
        self._sample, self._problem = sample, problem
        self.redraw()

    def redraw(self) -> None:
        """Redraw if something has changed."""
        content = self._content(self.content_size.width)
        if content.is_same(self._shown):
            return
        grown = content.plain.count("\n") != self._shown.plain.count("\n")
        self._shown = content
        self.update(content, layout=grown)

    def on_resize(self) -> None:
        """Lay the gauges out in the new width."""
        self.redraw()

    def on_click(self, _event: Click) -> None:
        """Choose this device."""
        self.post_message(self.Pressed(self))

    def _content(self, width: int) -> Content:
        from mptui.hardware.describe import describe

        if self.has_class("-line"):
            return self._in_a_line(self._sample or DeviceSample(name=""))
        told = describe(self.device, self._advice, self._machine)
        chosen = self.has_class("-chosen")
        lines = [Content.styled(clean(told.identity), "$quiet")]
        sample = self._sample or DeviceSample(name="")
        lines += _live(sample, width) if chosen else [_glance(sample)]
        if self._problem and self.device.kind != "cpu":
            lines.append(Content.styled(clean(self._problem), "$text-warning"))
        if chosen:
            lines.append(self._company(sample))
            lines.append(_formats(told.formats))
            lines += [_use(clean(told.use)), Content(clean(told.start))]
        usable = self.device.usable
        notes = told.notes if chosen else told.notes[: 0 if usable else 1]
        lines += [Content.styled(clean(note), "$quiet" if usable else "$text-warning") for note in notes]
        return Content("\n").join(line for line in lines if line.plain)

    def _in_a_line(self, sample: DeviceSample) -> Content:
        marked = self.has_class("-marked")
        name = Content(self._title).truncate(_NAME, ellipsis=True, pad=True)
        memory = f"{_gib(sample.memory_used):>6} of {_gib(sample.memory_total)} GiB"
        figures = [memory]
        if sample.power_w is not None:
            figures = [f"busy {gauges.busy(sample):>5}", memory, gauges.heat(sample)]
        sign = Content("✓ " if marked else "  ")
        line = Content(_GAP).join([Content.assemble(sign, name), *map(Content, figures)])
        trouble = Content.assemble(_GAP, gauges.throttle(sample)) if sample.throttle else ""
        return Content.assemble(line.stylize("$text-success") if marked else line, trouble)

    def _company(self, sample: DeviceSample) -> Content:
        """Describe throttling, and other processes on the device."""
        from mptui.hardware.describe import others_on

        words = clean(others_on(self.device.gpu)) if self.device.gpu else ""
        others = Content.styled(words, "$quiet" if words.startswith("nobody") else "$text-warning")
        return Content(_GAP).join(part for part in (gauges.throttle(sample), others) if part.plain)


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


def _glance(sample: DeviceSample) -> Content:
    """Return the most important values in one line."""
    words = [f"{_gib(sample.memory_used)} of {_gib(sample.memory_total)} GiB used"]
    if sample.power_w is not None:
        words = [f"busy {gauges.busy(sample)}", *words, gauges.power(sample), gauges.heat(sample)]
    return Content.assemble(_GAP.join(words), _GAP, gauges.throttle(sample))


def _gib(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value / (1 << 30):.1f}"


def _formats(formats: tuple[str, ...]) -> Content:
    return Content(_GAP).join(
        Content.styled(words, "$text-success" if words.endswith(" native") else "$quiet") for words in formats
    )


def _use(words: str) -> Content:
    head, colon, reason = words.partition(":")
    return Content.assemble((head, "bold"), (colon + reason, ""))
