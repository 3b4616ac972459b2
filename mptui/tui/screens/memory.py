"""Panels of the screen of the memory: the parts that were predicted, and what is measured over time."""

from typing import TYPE_CHECKING

from textual.content import Content

from mptui import format as fmt
from mptui.runs.view.labels import MEMORY
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.gauges import FIGURE, gauge, share
from mptui.tui.widgets.panel import Lines, Panel, row

if TYPE_CHECKING:
    from mptui.engine.memory.footprint import Footprint

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
