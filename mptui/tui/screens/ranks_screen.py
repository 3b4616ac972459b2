"""The screen of the ranks: a row for each process of a run, and who is slow."""

from textual.app import ComposeResult

from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.view_page import ViewPage
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.rank_table import RankTable, SlowRanks
from mptui.tui.widgets.small import TooSmall


class RanksScreen(ViewPage):
    """Shows the ranks of a run, sorted by what is in question."""

    where = "ranks"
    BINDINGS = bindings("ranks")
    DEFAULT_CSS = """
    RanksScreen {
        RankTable { height: 1fr; }
        SlowRanks { height: 5; }
        &.-short SlowRanks { height: 4; }
        &.-tiny, &.-flat {
            Header, Panel, KeyBar { display: none; }
        }
    }
    """

    def compose(self) -> ComposeResult:
        """Lay out the table, the verdict and the keys."""
        yield Header()
        yield RankTable(id="ranks")
        yield SlowRanks(id="slow")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def action_scroll(self, rows: int) -> None:
        """Scroll by so many ranks."""
        self.query_one(RankTable).scroll_rows(rows)
        self.show()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(RankTable).sort()
        self.show()
