"""Devices on screens: a card for one, a table of several."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.widgets import Static

from mptui import text as fmt
from mptui.events import DeviceProcess, DeviceSample
from mptui.text import clean
from mptui.tui.look import DeviceReading
from mptui.tui.widgets import basics
from mptui.tui.widgets.basics import bar, fit

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine


# Lines of the table of devices: headings, a line for each device, and their sums
# -------------------------------------------------------------------------------

_GAP = 2
_SIGNS = 2
"""Cells of the cursor and of the mark, before the label."""
_SIGN, _SHORT_SIGN = "  ◂ recommended", " ◂"
_MAKERS = {"NVIDIA", "GeForce", "Tesla", "AMD", "Instinct", "Intel(R)"}
_MEMORY = re.compile(r"[- ]\d+GB\b| HBM\w+")
_IDLE_BYTES, _IDLE_BUSY = 1 << 30, 0.05
"""Memory in use and utilisation below which a GPU without processes is free; containers hide processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device in the table.

    Attributes:
        label: What a flag calls it: 0, xpu:0, cpu; "": this is the row of sums.
        name: Its name.
        sample: Its load.
        problem: Why there are no new samples; None if there are.
        words: What stands in place of its processes; "": they do.
        busy: Its utilisation so far (0 to 1), newest last.
        is_gpu: Whether it counts in the sums.
        recommended: Whether it is the default device.
        marked: Whether it is marked for a run on several.
    """

    label: str
    name: str
    sample: DeviceSample
    problem: str | None = None
    words: str = ""
    busy: Sequence[float] = ()
    is_gpu: bool = True
    recommended: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """Cells of the columns that depend on the width of the table, 0: left out; `holder` is a minimum."""

    name: int
    bar: int
    power: int
    throttle: int
    history: int
    holder: int


_SHAPES = (
    _Shape(name=24, bar=12, power=7, throttle=20, history=40, holder=28),
    _Shape(name=20, bar=8, power=7, throttle=14, history=20, holder=26),
    _Shape(name=14, bar=6, power=7, throttle=0, history=10, holder=20),
    _Shape(name=10, bar=5, power=7, throttle=0, history=0, holder=12),
    _Shape(name=8, bar=0, power=0, throttle=0, history=0, holder=0),
)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: heading, cells, content of a row, and its alignment."""

    title: str
    width: int
    cell: Callable[[DeviceRow], Content]
    right: bool = False

    def fit(self, content: Content) -> Content:
        """Cut or pad a content to the width of the column."""
        return fit(content, self.width, right=self.right)


@dataclass(frozen=True, slots=True)
class TableLines:
    """The lines of a table; `sums` is None if there are not several GPUs."""

    heading: Content
    rows: list[Content]
    sums: Content | None


def table_lines(rows: Sequence[DeviceRow], chosen: int, width: int) -> TableLines:
    """Lay out the devices in `width` cells, with as many columns as fit.

    Args:
        rows: The devices.
        chosen: The position of the device under the cursor.
        width: Cells of each line.
    """
    labels = max(len(row.label) for row in rows)
    counted = [row for row in rows if row.is_gpu]
    sums = _sums(counted) if len(counted) > 1 else None
    columns = _columns([*rows, *([sums] if sums else [])], width - _SIGNS - labels)
    titles = (column.fit(Content(column.title)) for column in columns)
    heading = _joined(Content(" " * (_SIGNS + labels)), titles)
    return TableLines(
        heading.stylize("$quiet"),
        [_line(row, labels, columns, chosen=number == chosen) for number, row in enumerate(rows)],
        None if sums is None else _line(sums, labels, columns, chosen=False).stylize_before("$quiet"),
    )


def short_name(name: str) -> str:
    """Return the name of a device without its maker and memory: H100, RTX 4090, MI300X."""
    words = _MEMORY.sub("", name).split()
    return " ".join(word for word in words if word not in _MAKERS) or name


def is_free(sample: DeviceSample) -> bool:
    """Whether a GPU is known to have no processes, nor load or memory of hidden ones."""
    idle = (sample.utilisation or 0.0) <= _IDLE_BUSY and (sample.memory_used or 0) <= _IDLE_BYTES
    return sample.processes == [] and idle


def _line(row: DeviceRow, labels: int, columns: Sequence[_Column], *, chosen: bool) -> Content:
    tone = "bold $text-accent" if chosen else ""
    signs = Content.assemble(
        ("▸" if chosen else " ", tone),
        ("✓" if row.marked else " ", "$text-success"),
        (row.label.rjust(labels), tone),
    )
    first, *others = (column.fit(column.cell(row)) for column in columns)
    return _joined(signs, [first.stylize(tone) if tone else first, *others])


def _joined(first: Content, cells: Iterable[Content]) -> Content:
    return Content(" " * _GAP).join([first, *cells])


def _columns(rows: Sequence[DeviceRow], width: int) -> list[_Column]:
    """Return the columns of the widest shape that leaves room for who is on a device."""
    gpus = [row for row in rows if row.is_gpu] or rows
    names = max(Content(short_name(row.name)).cell_length for row in gpus)
    full = [_full(row.sample) for row in rows]
    memory, power = max(len(_memory(sample)) for sample in full), max(len(_power(sample)) for sample in full)
    for shape in _SHAPES:
        columns = _shaped(shape, min(names, shape.name), memory, power)
        left = width - sum(column.width + _GAP for column in columns) - _GAP
        if left >= shape.holder:
            break
    left = max(left, 1)
    return [*columns, _Column("held by", left, lambda row: _holder(row, left))]


def _full(sample: DeviceSample) -> DeviceSample:
    """Return a sample with all memory and power in use, for columns that keep their width."""
    power = sample.power_w if sample.power_limit_w is None else sample.power_limit_w
    return replace(sample, memory_used=sample.memory_total, power_w=power)


def _shaped(shape: _Shape, names: int, memory: int, power: int) -> list[_Column]:
    bars = shape.bar + 1 if shape.bar else 0

    def busy(row: DeviceRow) -> Content:
        return _with_bar(row.sample.utilisation, basics.busy(row.sample).rjust(5), shape.bar)

    def used(row: DeviceRow) -> Content:
        share = basics.share(row.sample.memory_used, row.sample.memory_total)
        return _with_bar(share, _memory(row.sample).rjust(memory), shape.bar)

    def past(row: DeviceRow) -> Content:
        newest = list(row.busy)[-shape.history :]
        return Content.styled(fmt.sparkline(newest, [0.0, 1.0]), "$device-curve")

    columns = [
        _Column("name", names, lambda row: Content(clean(short_name(row.name)))),
        _Column("busy", bars + 5, busy, right=not bars),
        _Column(f"last {shape.history} s", shape.history, past, right=True),
        _Column("memory GiB" if bars else "GiB", bars + memory, used, right=not bars),
        _Column("W", shape.power and max(power, shape.power), _watts, right=True),
        _Column("°C ", 4, _degrees, right=True),
        _Column("throttled by", shape.throttle, _throttle),
    ]
    return [column for column in columns if column.width]


def _with_bar(fraction: float | None, figure: str, cells: int) -> Content:
    return Content.assemble(bar(fraction, cells, "$device-curve"), " ", figure) if cells else Content(figure)


def _memory(sample: DeviceSample) -> str:
    """Return used and total memory in GiB, the used with a decimal if the total is below 500."""
    used, total = (None if n is None else n / (1 << 30) for n in (sample.memory_used, sample.memory_total))
    digits = 1 if total is None or total < 499.5 else 0
    words = (_rounded(used, digits), _rounded(total))
    return "/".join(words)


def _power(sample: DeviceSample) -> str:
    limit = f"/{sample.power_limit_w:.0f}" if sample.power_w is not None and sample.power_limit_w else ""
    return _rounded(sample.power_w) + limit


def _rounded(value: float | None, digits: int = 0) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.{digits}f}"


def _watts(row: DeviceRow) -> Content:
    """Return the power; a CPU without a sensor has none."""
    has_none = row.sample.power_w is None and not row.is_gpu
    return Content("" if has_none else _power(row.sample))


def _degrees(row: DeviceRow) -> Content:
    """Return the temperature, with a sign if clocks are throttled; a CPU without a sensor has none."""
    if row.sample.temperature_c is None and not row.is_gpu:
        return Content("")
    sign = ("▾" if row.sample.throttle else " ", "$text-warning")
    return Content.assemble(_rounded(row.sample.temperature_c), sign)


def _throttle(row: DeviceRow) -> Content:
    return Content.styled(clean(", ".join(row.sample.throttle)), "$text-warning")


def _holder(row: DeviceRow, width: int) -> Content:
    """Return who is on a device in `width` cells, and whether it is recommended."""
    if not row.recommended:
        return Content.styled(*_who(row, width))
    words, tone = _who(row, width - len(_SHORT_SIGN))
    fits = Content(words).cell_length + len(_SIGN) <= width
    return Content.assemble((words, tone), (_SIGN if fits else _SHORT_SIGN, "$text-accent"))


def _who(row: DeviceRow, width: int) -> tuple[str, str]:
    """Return the words of `_holder` and their style."""
    processes = row.sample.processes
    if row.problem or row.words:
        tone = "$text-warning" if row.problem else ""
        return _cut(clean(row.problem or row.words), width), tone
    if processes:
        return _process(processes, width), ""
    if processes is None:
        return (fmt.UNKNOWN if row.is_gpu else ""), "$quiet"
    return ("free", "$text-success") if is_free(row.sample) else ("in use", "$quiet")


def _process(processes: Sequence[DeviceProcess], width: int) -> str:
    """Name the largest process; its PID and the number of the others are never cut."""
    first, *others = processes
    if first.pid == os.getpid():
        who = "this mptui"
    else:
        who = " ".join(clean(word) for word in (first.user, first.command) if word) or "pid"
    tail = f" {first.pid}" + (f" +{len(others)}" if others else "")
    return _cut(who, max(1, width - len(tail))) + tail


def _cut(text: str, width: int) -> str:
    return Content(text).truncate(max(1, width), ellipsis=True).plain


def _sums(rows: Sequence[DeviceRow]) -> DeviceRow:
    """Return the sums of several GPUs: the mean of busy, the hottest, and how many are free or throttled."""
    samples = [row.sample for row in rows]
    busy = [sample.utilisation for sample in samples if sample.utilisation is not None]
    heat = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
    throttled = sum(bool(sample.throttle) for sample in samples)
    free = sum(row.problem is None and is_free(row.sample) for row in rows)
    return DeviceRow(
        label="",
        name=f"{len(rows)} GPUs",
        words=f"{free} free",
        sample=DeviceSample(
            name="",
            utilisation=sum(busy) / len(busy) if busy else None,
            memory_used=_sum(sample.memory_used for sample in samples),
            memory_total=_sum(sample.memory_total for sample in samples),
            power_w=_sum(sample.power_w for sample in samples),
            temperature_c=max(heat, default=None),
            throttle=[f"{throttled} of them"] if throttled else [],
        ),
    )


def _sum(values: Iterable[float | None]) -> int | None:
    """Return the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


# A device as a card: identity, load, who is on it, precisions and recommendation
# -------------------------------------------------------------------------------

_BAR_GAP = "   "
_LABEL, _FIGURE = 7, 19
_TWO_COLUMNS = 60
"""Width in cells from which two gauges share a line."""


@dataclass(frozen=True, slots=True)
class CardDevice:
    """What a card shows: a device, the recommendation for it, and its machine."""

    device: "Device"
    advice: "Recommendation"
    machine: "Machine"


class DeviceCard(Static):
    """One device with all details, and who is on it where there is room."""

    DEFAULT_CSS = """
    DeviceCard {
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
        self.border_title = "looking at this machine …"
        self._of: CardDevice | None = None
        self._reading = DeviceReading(DeviceSample(name=""))
        self._reason: str | None = None
        self._alone = False
        self._shown = Content("")

    def open(self, of: CardDevice, *, marked: bool, alone: bool) -> None:
        """Show a device; `alone`: with gauges, as no table shows its load."""
        self._of = of
        self._alone = alone
        self.set_class(marked, "-marked")
        title = clean(f"{of.device.torch_name}  {of.device.name}", 60)
        self.border_title = Content(f"✓ {title}" if marked else title)

    def show(self, reading: DeviceReading, reason: str | None) -> None:
        """Show the latest sample, or why there is none, and why it is the default device."""
        self._reading = reading
        self._reason = reason
        self.redraw()

    def redraw(self) -> None:
        """Redraw if something has changed."""
        width, height = self.content_size
        if self._of is None or width <= 0:
            return
        lines = _most_important(self._lines(self._of, width), width, height)
        content = Content("\n").join(lines)
        if not content.is_same(self._shown):
            self._shown = content
            self.update(content, layout=False)

    def on_resize(self) -> None:
        """Lay out in the new size."""
        self.redraw()

    def _lines(self, of: CardDevice, width: int) -> list[tuple[int, Content]]:
        """Return the lines, each with its rank: the highest is left out first."""
        from mptui.hardware.describe import describe

        told = describe(of.device, of.advice, of.machine)
        sample, problem = self._reading.sample, self._reading.problem
        usable = of.device.usable
        tone = "$quiet" if usable else "$text-warning"
        load = _live(sample, width) if self._alone else [_figures(sample)]
        warning = Content.styled(clean(problem or "") if of.device.kind != "cpu" else "", "$text-warning")
        # without a frame, and a table, this line has the name
        name = (
            f"{of.device.torch_name}  {of.device.name}   " if self._alone and self.has_class("-bare") else ""
        )
        ranked = [
            (3 if name else 5, Content.assemble(clean(name), (clean(told.identity), "$quiet"))),
            *((4 if self._alone else 10, line) for line in load),
            (1, warning),
            (3, self._company(of.device)),
            (7, _people(self._reading.sample.processes or [], width)),
            (6, _formats(told.formats)),
            (0, _use(clean(told.use))),
            (2, Content(clean(told.start))),
            (8, Content.styled(clean(self._reason or ""), "$quiet")),
            *((9 if usable else 1, Content.styled(clean(note), tone)) for note in told.notes),
        ]
        return [(rank, line) for rank, line in ranked if line.plain]

    def _company(self, device: "Device") -> Content:
        """Describe throttling, and other processes on the device."""
        from mptui.hardware.describe import others_on

        words = clean(others_on(_processes(self._reading, device)))
        others = Content.styled(words, "$quiet" if words.startswith("no ") else "$text-warning")
        return Content(_BAR_GAP).join(
            part for part in (basics.throttle(self._reading.sample), others) if part.plain
        )


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
    room = (width - (columns - 1) * len(_BAR_GAP)) // columns - _LABEL - _FIGURE
    memory = f"{fmt.gib(sample.memory_used)} of {fmt.gib(sample.memory_total)} GiB"

    def gauge(label: str, fraction: float | None, figure: str) -> Content:
        return basics.gauge(label, fraction, figure.rjust(_FIGURE), room, label_width=_LABEL)

    bars = [
        gauge("memory", basics.share(sample.memory_used, sample.memory_total), memory),
        gauge("busy", sample.utilisation, basics.busy_with_own(sample)),
    ]
    if sample.power_w is not None:
        share = basics.share(sample.power_w, sample.power_limit_w)
        bars.append(gauge("power", share, basics.power(sample)))
    lines = [Content(_BAR_GAP).join(bars[at : at + columns]) for at in range(0, len(bars), columns)]
    if sample.temperature_c is None:
        return lines
    heat = Content(f"{basics.heat(sample)}{_BAR_GAP}{basics.clock(sample)}")
    if columns == 2 and len(bars) % 2:
        return [*lines[:-1], Content.assemble(lines[-1], _BAR_GAP, heat)]
    return [*lines, heat]


def _figures(sample: DeviceSample) -> Content:
    """Return in one line what the table has no room for."""
    if sample.power_w is None and sample.temperature_c is None:
        own = sample.utilisation_own
        return Content("" if own is None else f"busy {basics.busy_with_own(sample)}")
    return Content(_BAR_GAP.join([basics.power(sample).lstrip(), basics.heat(sample), basics.clock(sample)]))


def _people(processes: Sequence[DeviceProcess], width: int) -> Content:
    """Return a line for each process if there are several: memory, PID, user and program."""
    if len(processes) < 2:
        return Content("")
    lines = [Content.styled(f"{'memory':>10}  {'pid':>8}  on this device", "$quiet")]
    for each in processes:
        who = clean(f"{each.user or fmt.UNKNOWN}  {each.command or fmt.UNKNOWN}")
        line = Content(f"{fmt.size(each.memory):>10}  {each.pid:>8}  {who}")
        lines.append(line.truncate(width, ellipsis=True))
    return Content("\n").join(lines)


def _formats(formats: tuple[str, ...]) -> Content:
    return Content(_BAR_GAP).join(
        Content.styled(words, "$text-success" if words.endswith(" native") else "$quiet") for words in formats
    )


def _use(words: str) -> Content:
    head, colon, reason = words.partition(":")
    return Content.assemble((head, "bold"), (colon + reason, ""))


# The table of devices; the one under the cursor is opened below it
# -----------------------------------------------------------------


class DeviceTable(Vertical):
    """A line for each device, and one of sums; the lines scroll where not all fit.

    Args:
        expected: Number of devices that have lines before the first ones are shown.
    """

    DEFAULT_CSS = """
    DeviceTable {
        height: auto;
        Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        VerticalScroll { scrollbar-size: 1 1; }
        VerticalScroll Static { height: auto; }
    }
    """

    class Pressed(Message):
        """A line was clicked; `twice`: it is to be opened."""

        def __init__(self, number: int, *, twice: bool = False) -> None:
            super().__init__()
            self.number = number
            self.twice = twice

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self._heading, self._lines, self._sums = (Static(markup=False) for _ in range(3))
        self._scroll = VerticalScroll(self._lines, can_focus=False)
        self._rows: Sequence[DeviceRow] = [
            DeviceRow(label=str(number), name="…", sample=DeviceSample(name="")) for number in range(expected)
        ]
        self._chosen = 0

    def compose(self) -> ComposeResult:
        """Lay out headings, devices and sums."""
        yield self._heading
        yield self._scroll
        yield self._sums

    def show(self, rows: Sequence[DeviceRow], chosen: int) -> None:
        """Show devices with their latest samples; unchanged lines are not repainted."""
        self._rows = rows
        self._chosen = chosen
        width = (
            self.content_size.width
            - self._scroll.scrollbar_size_vertical * self._scroll.show_vertical_scrollbar
        )
        if width <= 0 or not rows:
            return
        lines = table_lines(rows, chosen, width)
        _put(self._heading, lines.heading)
        _put(self._lines, Content("\n").join(lines.rows))
        _put(self._sums, lines.sums or Content(""))

    def fit(self, height: int) -> int:
        """Keep to `height` lines: sums are left out first, then devices scroll. Return the lines in use."""
        several = sum(row.is_gpu for row in self._rows) > 1
        self._sums.display = several and len(self._rows) + 2 <= height
        others = 1 + self._sums.display
        lines = min(len(self._rows), max(1, height - others))
        self._scroll.styles.height = lines
        self.call_after_refresh(self._scroll.scroll_to_region, Region(0, self._chosen, 1, 1), animate=False)
        return lines + others

    def on_resize(self) -> None:
        """Lay the lines out in the new width."""
        self.show(self._rows, self._chosen)

    def on_click(self, event: Click) -> None:
        """Choose the device of the line under the mouse."""
        place = event.get_content_offset(self._lines)
        if place is not None and self._scroll.region.contains_point(event.screen_offset):
            self.post_message(self.Pressed(place.y, twice=event.chain == 2))


def _put(line: Static, content: Content) -> None:
    """Show a content if it differs from the one that is shown."""
    before = line.content
    if not isinstance(before, Content) or not content.is_same(before):
        line.update(content, layout=content.plain.count("\n") != str(before).count("\n"))
