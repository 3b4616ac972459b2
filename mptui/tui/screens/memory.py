"""The screen of the memory: the parts that were predicted, and what is measured over time."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content

from mptui import text as fmt
from mptui.errors import MptuiError
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import MEMORY
from mptui.tui.keys import bindings
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.selection import predicted
from mptui.tui.widgets.basics import FIGURE, KeyBar, Lines, Panel, gauge, row, share
from mptui.tui.widgets.header import Header
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from mptui.engine.memory.ledger import Footprint


# Panels of the screen of the memory: the parts that were predicted, and what is measured over time
# -------------------------------------------------------------------------------------------------

_LABEL = 14
_PARTS = {
    "weights": "weights",
    "gradients_at_peak": "gradients",
    "optimizer": "optimizer",
    "average": "average",
    "activations": "activations",
    "working": "temporaries",
    "batches": "batches",
    "workspace": "workspaces",
    "context": "libraries",
}
"""Attributes of a `Footprint` -> words; the last two are estimates."""


class PredictedMemory(Panel):
    """The parts of the peak of a step.

    Attributes:
        outcome: The count, or why there is none; None: not known yet.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("predicted", id=id)
        self.outcome: Footprint | str | None = None

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out a bar for each part, the largest first where not all fit."""
        counted = self.outcome
        if counted is None or isinstance(counted, str):
            return [Content.styled(counted or "counting …", "$quiet")]
        self.retitle(f"predicted peak · {view.precision} · {counted.batch_size:,} images at once")
        room = max(0, width - _LABEL - FIGURE)
        parts = [(word, getattr(counted, part)) for part, word in _PARTS.items() if getattr(counted, part)]
        bars = [
            gauge(word, share(size, counted.total), fmt.size(size), room, label_width=_LABEL)
            for word, size in parts
        ]
        return [row("total", fmt.size(counted.total), label_width=_LABEL), *bars]


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
            return [Content.styled("the run has not reported its memory yet", "$quiet")]
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
        PredictedMemory { height: 1fr; min-height: 7; }
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
        yield PredictedMemory(id="predicted")
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
        panel, measured = self.query_one(PredictedMemory), self.query_one(MeasuredMemory)
        assert started is not None
        if run is None:
            panel.outcome = "the run has no directory yet"
        else:
            try:
                panel.outcome = await in_background(lambda: predicted(run, started, precision))
            except MptuiError as error:
                panel.outcome = error.message
        measured.predicted = None if isinstance(panel.outcome, str) else panel.outcome.allocated
        super().show()
