"""The numerics screen: layers by risk in 16 bits, the exponents of one layer, the best loss scale."""

from collections.abc import Callable, Mapping

from textual.app import ComposeResult

from mptui.runs.view.run_view import RunView
from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.view_page import ViewPage
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.layer_table import ExponentPanel, NumericsWords, RiskTable
from mptui.tui.widgets.small import TooSmall


class NumericsScreen(ViewPage):
    """Shows a run's numerics; requests full probes while the full mode is on.

    Args:
        view: The view of the run, updated by the live screen below.
        command: Sends a command to the run.
        keymap: The user's keys.
    """

    where = "numerics"
    BINDINGS = bindings("numerics")
    DEFAULT_CSS = """
    NumericsScreen {
        RiskTable { height: 1fr; min-height: 6; }
        ExponentPanel { height: 1fr; min-height: 9; }
        NumericsWords { height: 4; }
        &.-short RiskTable { height: 6; }
        &.-short ExponentPanel { min-height: 8; }
        &.-short NumericsWords { display: none; }
        &.-unseen {
            RiskTable { height: 1fr; }
            NumericsWords { display: block; }
        }
        &.-tiny, &.-flat {
            Header, Panel, KeyBar { display: none; }
        }
    }
    """

    def __init__(
        self,
        view: RunView,
        command: Callable[[str, str | None], None],
        keymap: Mapping[str, str],
    ) -> None:
        super().__init__(view, keymap)
        self._command = command
        self._full = False

    def compose(self) -> ComposeResult:
        """Lay out the table, the exponents, the advice and the keys."""
        table = RiskTable(id="risks")
        yield Header()
        yield table
        yield ExponentPanel(table, id="exponents")
        yield NumericsWords(id="words")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def show(self) -> None:
        """Show the view; before the first probe, without exponents."""
        unseen = self._view.numerics is None
        self.set_class(unseen, "-unseen")
        self.query_one(ExponentPanel).display = not unseen
        super().show()

    def action_choose(self, rows: int) -> None:
        """Choose another layer."""
        self.query_one(RiskTable).move(rows, self._view)
        self.show()

    def action_part(self) -> None:
        """Show outputs, gradients, weights' gradients, or all."""
        self.query_one(RiskTable).turn()
        self.show()

    def action_full(self) -> None:
        """Probe all values, or return to the configured mode."""
        self._full = not self._full
        self._command("numerics", "full" if self._full else None)

    def back(self) -> None:
        """Close, and return to the configured mode."""
        self._close("back")

    def leave(self) -> None:
        """Quit as the live screen does."""
        self._close("leave")

    def _close(self, how: str) -> None:
        if self._full and self._view.finished is None:
            self.action_full()
        self.dismiss(how)
