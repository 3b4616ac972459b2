"""The screen of the memory: the parts that were predicted, and what is measured over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.content import Content

from mptui import text as fmt
from mptui.errors import MptuiError
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import MEMORY
from mptui.tui.keys import bindings
from mptui.tui.memory_count import CountedMemory, count_memory
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.widgets.basics import KeyBar, Lines, Panel, row, share
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


class MeasuredMemory(Panel):
    """The memory of the process, now and over the run.

    Attributes:
        predicted: Predicted peak of all tensors in bytes; None: unknown.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("measured", id=id)
        self.predicted: int | None = None

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
            words = "with Python, its libraries and what the data takes; tensors on a CPU are not told apart"
            return [
                row("process", fmt.size(sample.process), label_width=_LABEL),
                *_course(view, "process", width),
                Content.styled(words, "$quiet"),
            ]
        of = share(sample.peak, self.predicted)
        against = "" if of is None else f"{of:.2f} of the prediction, {fmt.size(self.predicted)}"
        gaps = share(sample.gaps, sample.reserved)
        lost = "" if gaps is None else f"gaps {fmt.size(sample.gaps)}, {100 * gaps:.0f} %"
        return [
            row("peak", fmt.size(sample.peak), against, label_width=_LABEL),
            *_course(view, "peak", width),
            row("now", fmt.size(sample.allocated), label_width=_LABEL),
            row("reserved", fmt.size(sample.reserved), lost, label_width=_LABEL),
            *_course(view, "reserved", width),
            row("process", fmt.size(sample.process), "on the host", label_width=_LABEL),
        ]


def _course(view: RunView, series: str, width: int) -> Lines:
    """Return a line with the recent course of a figure, from 0; none before there is one."""
    history = view.histories.get(MEMORY, {}).get(series)
    if history is None or width <= _LABEL:
        return []
    values = history.tail(width - _LABEL).tolist()
    return [Content.assemble(" " * _LABEL, (fmt.sparkline(values, [0.0, *values]), "$quiet"))]


# The screen of the memory: what a step was predicted to take, beside what the process has
# ----------------------------------------------------------------------------------------


class MemoryScreen(ViewPage):
    """Shows where the memory of a run goes; the prediction is counted anew after a switch.

    Args:
        view: The view of the run, updated by the live screen below.
        run: Directory of the run; None: it has none yet.
        keymap: The user's keys.
    """

    where = "memory"
    BINDINGS = bindings("memory")
    DEFAULT_CSS = """
    MemoryScreen {
        MemoryBars { height: 1fr; min-height: 7; }
        MeasuredMemory { height: 9; }
        &.-short MeasuredMemory { height: 6; }
        &.-tiny, &.-flat {
            Header, Panel, KeyBar { display: none; }
        }
    }
    """

    def __init__(self, view: RunView, run: Path | None, keymap: Mapping[str, str]) -> None:
        super().__init__(view, keymap)
        self._run = run
        self._counted: tuple[int, str] | None = None

    def compose(self) -> ComposeResult:
        """Lay out the prediction, what is measured, and the keys."""
        yield Header()
        yield MemoryBars(id="predicted")
        yield MeasuredMemory(id="measured")
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
        super().show()

    @work(exclusive=True, group="counting")
    async def _count(self) -> None:
        run, started, precision = self._run, self._view.started, self._view.precision
        # looked up now: the screen may be closed while the memory is counted
        panel, measured = self.query_one(MemoryBars), self.query_one(MeasuredMemory)
        assert started is not None
        if run is None:
            panel.outcome = "the run has no directory yet"
        else:
            try:
                panel.outcome = await in_background(lambda: count_memory(run, started, precision))
            except MptuiError as error:
                panel.outcome = error.message
        measured.predicted = None if isinstance(panel.outcome, str) else panel.outcome.allocated
        super().show()
