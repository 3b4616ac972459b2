"""The screen of the memory: what was predicted, by part, layer and batch, and what is measured over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content

from mptui import text as fmt
from mptui.errors import MptuiError
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import MEMORY
from mptui.tui.keys import bindings
from mptui.tui.memory_count import CountedMemory, count_memory
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.widgets.basics import KeyBar, Lines, Panel, bar, fit, row, share
from mptui.tui.widgets.chart import Chart, ChartSet
from mptui.tui.widgets.header import Header
from mptui.tui.work import in_background

# The panels: predicted and measured on one axis, and what is measured over time
# -----------------------------------------------------------------------------

_LABEL = 14
_PARTS = {
    "weights": ("weights", "w", "$series-1"),
    "gradients_at_peak": ("gradients", "g", "$series-2"),
    "optimizer": ("optimizer", "o", "$series-3"),
    "average": ("average", "v", "$series-7"),
    "activations": ("activations", "a", "$series-4"),
    "working": ("temporaries", "t", "$series-5"),
    "batches": ("batches", "b", "$series-6"),
    "workspace": ("workspaces", "s", "$series-8"),
    "context": ("libraries", "l", "$quiet"),
}
"""Parts of a `CountedMemory` -> words, sign in a bar, colour; the last two are estimates."""
_WORD, _SIZE, _SHARE = 13, 10, 8
_PART = 2 + _WORD + _SIZE + _SHARE
"""Cells of a part in the key of the bars."""
_LAYER = 30
"""Most cells of the name of a layer."""
_BATCHES = (0.5, 1, 2, 4, 8)
"""Batches for which the peak is told, in units of that of the run."""
_ROOMY = 70
"""Width from which the total names the limit, too, which stands below the bars in any case."""
_FAR = 4
"""A limit of more than so many times the longer bar is only named, as the bars would be slivers beside it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a stacked bar."""

    word: str
    sign: str
    tone: str
    size: int


def _predicted_parts(counted: CountedMemory) -> list[_Part]:
    parts = [_Part(*named, counted.parts[name]) for name, named in _PARTS.items()]
    return [part for part in parts if part.size > 0]


def _measured_parts(view: RunView) -> list[_Part]:
    """Return the parts of what is measured; on a CPU, the process alone."""
    sample = view.memory
    if sample is None:
        return []
    if sample.reserved is None:
        return [_Part("process", "p", "$device-curve", max(0, sample.process or 0))]
    peak = max(0, sample.peak or 0)
    held = max(peak, sample.reserved)
    own = view.device.memory_own if view.device else None
    parts = [
        _Part("tensors", "p", "$device-curve", peak),
        _Part("reserve", "r", "$series-8", held - peak),
        _Part("libraries", "l", "$quiet", max(0, (own or 0) - held)),
    ]
    return [part for part in parts if part.size > 0]


class _Stacks:
    """The one axis of both bars: from 0 to the limit, or to the longer bar where the limit is far.

    Args:
        most: The longer bar in bytes.
        limit: Memory of the device in bytes; None: unknown.
        room: Cells of the axis.
    """

    def __init__(self, most: int, limit: int | None, room: int) -> None:
        self._room = room
        self._limit = limit
        is_near = limit is not None and limit <= _FAR * most
        self._top = max(most, limit or 0) if is_near else most
        self._line = int((limit or 0) / self._top * (room - 1)) if is_near and self._top else None

    def bar(self, parts: Sequence[_Part]) -> Content:
        """Return a bar; each part begins with its sign, which tells it without colours, too."""
        cells = [("─", "$frame")] * self._room
        end, passed = 0, 0
        for part in parts:
            passed += part.size
            start, end = end, round(passed / (self._top or 1) * self._room)
            cells[start:end] = [
                (part.sign if place == start else "█", part.tone) for place in range(start, end)
            ]
        if self._line is not None:
            cells[self._line] = ("┃", "bold $text-warning")
        return Content.assemble(*cells)

    def scale(self) -> Content:
        """Return the line below the bars, with the limit under its line."""
        if self._limit is None:
            return Content.styled("0" + fmt.size(self._top).rjust(self._room - 1), "$quiet")
        words = f"limit {fmt.size(self._limit)} {'▶' if self._line is None else '┃'}"
        end = self._room if self._line is None else self._line + 1
        before = max(0, end - len(words) - 1)
        return Content.assemble(("0" + " " * before, "$quiet"), (words, "$text-warning"))


class MemoryBars(Panel):
    """The parts of the peak of a step, beside what is measured, as bars on one axis.

    Attributes:
        outcome: The count, or why there is none; None: not known yet.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("predicted", id=id)
        self.outcome: CountedMemory | str | None = None

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out both bars, their total, and a key of the parts: the largest where not all fit."""
        counted = self.outcome
        measured = [f"{part.sign} {part.word}" for part in _measured_parts(view)]
        self.border_subtitle = Content(f"measured: {' · '.join(measured)}") if measured else None
        if counted is None or isinstance(counted, str):
            return [Content.styled(counted or "counting …", "$quiet"), *_bars(view, [], width)]
        self.retitle(f"predicted peak · {view.precision} · {counted.batch_size:,} images at once")
        predicted = _predicted_parts(counted)
        bars = _bars(view, predicted, width)
        return [*bars, *_key(predicted, width, self.content_size.height - len(bars))]


def _bars(view: RunView, predicted: Sequence[_Part], width: int) -> Lines:
    """Return a bar for each of predicted and measured that is known, their scale, and the total in words."""
    shown = {"predicted": predicted, "measured": _measured_parts(view)}
    totals = {word: sum(part.size for part in parts) for word, parts in shown.items() if parts}
    if not totals:
        return []
    limit = view.device.memory_total if view.device else None
    stacks = _Stacks(max(totals.values()), limit, max(2, width - _LABEL - _SIZE))
    lines = [
        Content.assemble(
            (f"{word:<{_LABEL}}", "$quiet"), stacks.bar(shown[word]), f"{fmt.size(size):>{_SIZE}}"
        )
        for word, size in totals.items()
    ]
    words = [f"{fmt.size(size)} {word}" for word, size in totals.items()]
    if limit and width >= _ROOMY:
        words.append(f"limit {fmt.size(limit)}")
    scale = Content.assemble(" " * _LABEL, stacks.scale())
    return [*lines, scale, Content.assemble(("total".ljust(_LABEL), "$quiet"), ", ".join(words))]


def _key(parts: list[_Part], width: int, rows: int) -> Lines:
    """Return the parts, the largest first, in as few columns as `rows` rows take."""
    whole = sum(part.size for part in parts)
    largest = sorted(parts, key=lambda part: -part.size)
    columns = max(1, min(-(-len(parts) // max(rows, 1)), width // _PART))
    rows = max(0, min(rows, -(-len(parts) // columns)))
    cells = [
        Content.assemble(
            (f"{part.sign} ", part.tone),
            (f"{part.word:<{_WORD}}", "$quiet"),
            f"{fmt.size(part.size):>{_SIZE}}{fmt.percent(part.size / whole):>{_SHARE}}",
        )
        for part in largest
    ]
    gap = min(6, (width - columns * _PART) // columns)
    return [Content(" " * gap).join(cells[number : rows * columns : rows]) for number in range(rows)]


class LayerMemory(Panel):
    """The activations at the peak by layer, the largest first.

    Attributes:
        counted: The count; None: there is none.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("activations by layer", id=id)
        self.counted: CountedMemory | None = None

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out a row for each of the largest, and the sum of the others."""
        if self.counted is None:
            return [Content.styled("counting …", "$quiet")]
        sizes = sorted(((size, name) for name, size in self.counted.by_layer.items() if size), reverse=True)
        rows, whole = self.content_size.height, sum(size for size, _ in sizes)
        shown = sizes if len(sizes) <= rows else sizes[: max(0, rows - 1)]
        lines = [_share_row(name or "the network itself", size, whole, width) for size, name in shown]
        if rest := sizes[len(shown) :]:
            lines.append(_share_row(f"and {len(rest)} more", sum(size for size, _ in rest), whole, width))
        return lines


class BatchMemory(Panel):
    """The predicted peak with other batches, beside the limit.

    Attributes:
        counted: The count; None: there is none.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("other batches", id=id)
        self.counted: CountedMemory | None = None

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out a row for each batch."""
        counted, limit = self.counted, view.device.memory_total if view.device else None
        if counted is None:
            return [Content.styled("counting …", "$quiet")]
        self.retitle("other batches" + (f" · shares of {fmt.size(limit)}" if limit else ""))
        batches = dict.fromkeys(max(1, round(counted.batch_size * times)) for times in _BATCHES)
        total = sum(counted.parts.values())
        sizes = {batch: total + round((batch - counted.batch_size) * counted.per_sample) for batch in batches}
        whole = limit or max(sizes.values())
        return [
            _share_row(fmt.counted(batch, "image"), size, whole, width, is_now=batch == counted.batch_size)
            for batch, size in sizes.items()
        ]


def _share_row(word: str, size: int, whole: int, width: int, *, is_now: bool = False) -> Content:
    """Return a row of a word, a size, its share, and a bar of it; amber from the whole on."""
    share_of = size / (whole or 1)
    name = max(_LABEL, min(_LAYER, width - _SIZE - _SHARE - 10))
    tone = "$text-warning" if share_of > 1 else "$device-curve"
    return Content.assemble(
        fit(word, name - 1).stylize("bold" if is_now else "$quiet"),
        f" {fmt.size(size):>{_SIZE}}{fmt.percent(share_of):>{_SHARE}}  ",
        bar(share_of, max(0, width - name - _SIZE - _SHARE - 2), tone),
    )


class MeasuredMemory(Panel):
    """The memory of the process, now and over the run.

    Attributes:
        predicted: Predicted peak of all tensors in bytes; None: unknown.
        is_charted: Whether a chart has the course of the figures.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("measured", id=id)
        self.predicted: int | None = None
        self.is_charted = False

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the figures with their course over the run."""
        sample = view.memory
        if sample is None:
            return [
                Content.styled(
                    "the run has not reported its memory yet: it does with its first steps", "$quiet"
                )
            ]
        if sample.reserved is None:
            return [
                row("process", fmt.size(sample.process), label_width=_LABEL),
                *self._course(view, "process", width),
                *_what_a_process_has(width),
            ]
        of = share(sample.peak, self.predicted)
        against = "" if of is None else f"{of:.2f} of the prediction, {fmt.size(self.predicted)}"
        gaps = share(sample.gaps, sample.reserved)
        lost = "" if gaps is None else f"gaps {fmt.size(sample.gaps)}, {100 * gaps:.0f} %"
        return [
            row("peak", fmt.size(sample.peak), against, label_width=_LABEL),
            *self._course(view, "peak", width),
            row("now", fmt.size(sample.allocated), label_width=_LABEL),
            row("reserved", fmt.size(sample.reserved), lost, label_width=_LABEL),
            *self._course(view, "reserved", width),
            row("process", fmt.size(sample.process), "on the host", label_width=_LABEL),
        ]

    def _course(self, view: RunView, series: str, width: int) -> Lines:
        """Return a line with the recent course of a figure, from 0; none before there is one."""
        history = view.histories.get(MEMORY, {}).get(series)
        if history is None or width <= _LABEL or self.is_charted:
            return []
        values = history.tail(width - _LABEL).tolist()
        return [Content.assemble(" " * _LABEL, (fmt.sparkline(values, [0.0, *values]), "$quiet"))]


@lru_cache(maxsize=4)
def _what_a_process_has(width: int) -> Lines:
    words = "with Python, its libraries and what the data takes; tensors on a CPU are not told apart"
    return [line.stylize("$quiet") for line in Content(words).wrap(width)]


# The screen of the memory: what a step was predicted to take, beside what the process has
# ----------------------------------------------------------------------------------------


class MemoryScreen(ViewPage):
    """Shows where the memory of a run goes; the prediction is counted anew after a switch.

    Args:
        view: The view of the run, updated by the live screen below.
        run: Directory of the run; None: it has none yet.
        ascii_only: Draw in ASCII.
    """

    where = "memory"
    BINDINGS = bindings("memory")
    DEFAULT_CSS = """
    MemoryScreen {
        MemoryBars { height: 1fr; min-height: 7; }
        #beside { height: 9; }
        LayerMemory, BatchMemory, #course { display: none; }
        &.-short #beside { height: 6; }
        &.-high.-wide {
            MemoryBars { height: 10; }
            #beside { height: 1fr; }
            #course { display: block; height: 1fr; }
            LayerMemory { display: block; width: 1fr; height: 1fr; }
            BatchMemory { display: block; height: 7; }
            &.-uncounted LayerMemory, &.-uncounted BatchMemory { display: none; }
        }
        MeasuredMemory { height: 1fr; }
        &.-high.-wide MeasuredMemory { height: 6; }
        &.-high.-wide.-on-cpu MeasuredMemory { height: 5; }
    }
    """

    def __init__(self, view: RunView, run: Path | None, *, ascii_only: bool = False) -> None:
        super().__init__(view)
        self._run = run
        self._bars, self._measured = MemoryBars(id="predicted"), MeasuredMemory(id="measured")
        self._layers, self._batches = LayerMemory(id="layers"), BatchMemory(id="batches")
        self._course = Chart(mode="ascii" if ascii_only else "braille", id="course")
        self._course.can_focus = False
        self._charts = ChartSet([self._course])
        self._counted: tuple[int, str] | None = None

    def compose(self) -> ComposeResult:
        """Lay out the prediction, what is measured, and the keys."""
        yield Header()
        yield self._bars
        with Horizontal(id="beside"):
            yield self._layers
            with Vertical():
                yield self._batches
                yield self._measured
                yield self._course
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def show(self) -> None:
        """Show the view; count its settings if they are others than before."""
        started = self._view.started
        if started is not None:
            settings = started.batch_size, f"{self._view.profile} {self._view.precision}"
            if settings != self._counted:
                self._counted = settings
                self._count()
        self._show_all()

    def _show_all(self) -> None:
        sample, is_charted = self._view.memory, self.has_class("-high") and self.has_class("-wide")
        self.set_class(sample is not None and sample.reserved is None, "-on-cpu")
        self._measured.is_charted = is_charted
        super().show()
        if is_charted:
            self._charts.show(self._view, {0: MEMORY})

    def on_resize(self) -> None:
        """Show what has room now."""
        self.call_after_refresh(self._show_all)

    @work(exclusive=True, group="counting")
    async def _count(self) -> None:
        run, started, precision = self._run, self._view.started, self._view.precision
        panel = self._bars
        assert started is not None
        if run is None:
            panel.outcome = "the run has no directory yet"
        else:
            try:
                panel.outcome = await in_background(lambda: count_memory(run, started, precision))
            except MptuiError as error:
                panel.outcome = error.message
        counted = None if isinstance(panel.outcome, str) else panel.outcome
        self._measured.predicted = None if counted is None else counted.allocated
        self._layers.counted = self._batches.counted = counted
        self.set_class(counted is None, "-uncounted")
        self._show_all()
