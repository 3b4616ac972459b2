"""The screen of the memory: what a step was predicted to take, beside what the process has."""

from collections.abc import Mapping
from pathlib import Path

from textual import work
from textual.app import ComposeResult

from mptui.errors import MptuiError
from mptui.runs.view.run_view import RunView
from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.view_page import ViewPage
from mptui.tui.setup.memory_fit import predicted
from mptui.tui.threads import in_background
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.memory_panels import MeasuredMemory, PredictedMemory
from mptui.tui.widgets.small import TooSmall


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
