"""Lines of the table of devices: headings, a line for each device, and their sums."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from textual.content import Content

from mptui import format as fmt
from mptui.events import DeviceProcess, DeviceSample
from mptui.text import clean
from mptui.tui.widgets import gauges
from mptui.tui.widgets.bars import bar
from mptui.tui.widgets.cells import fit

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
        return _with_bar(row.sample.utilisation, gauges.busy(row.sample).rjust(5), shape.bar)

    def used(row: DeviceRow) -> Content:
        share = gauges.share(row.sample.memory_used, row.sample.memory_total)
        return _with_bar(share, _memory(row.sample).rjust(memory), shape.bar)

    def past(row: DeviceRow) -> Content:
        newest = list(row.busy)[-shape.history :]
        return Content.styled(fmt.sparkline(newest, [0.0, 1.0]), "$text-accent")

    columns = [
        _Column("name", names, lambda row: Content(clean(short_name(row.name)))),
        _Column("busy", bars + 5, busy, right=not bars),
        _Column(f"last {shape.history} s", shape.history, past, right=True),
        _Column("memory GiB" if bars else "GiB", bars + memory, used, right=not bars),
        _Column("W", shape.power and max(power, shape.power), lambda row: Content(_power(row.sample)), True),
        _Column("°C ", 4, _degrees, right=True),
        _Column("throttled by", shape.throttle, _throttle),
    ]
    return [column for column in columns if column.width]


def _with_bar(fraction: float | None, figure: str, cells: int) -> Content:
    return Content.assemble(bar(fraction, cells), " ", figure) if cells else Content(figure)


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


def _degrees(row: DeviceRow) -> Content:
    """Return the temperature, with a sign if clocks are throttled."""
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
