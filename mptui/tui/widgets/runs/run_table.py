"""The list of runs with a cursor."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static
from textual.widgets.option_list import Option

from mptui.runs.listing.run_rows import RunRow
from mptui.tui.widgets.runs.run_lines import heading, run_line
from mptui.tui.widgets.setup.setting_list import KeyedList


class RunTable(Vertical):
    """Runs under their headings; the cursor stays on its run when others come, go or are sorted."""

    DEFAULT_CSS = """
    RunTable {
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
        &:focus-within { border: round $accent; border-title-color: $text-accent; }
        #headings { height: 1; padding: 0 1; text-wrap: nowrap; }
        KeyedList, KeyedList:focus { border: none; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: Sequence[RunRow] = ()
        self._marked: Mapping[Path, int] = {}
        self._order = ""

    def compose(self) -> ComposeResult:
        """Lay out headings and lines."""
        yield Static(id="headings", markup=False)
        yield KeyedList(id="lines", markup=False)

    @property
    def chosen(self) -> RunRow | None:
        """The run under the cursor."""
        at = self.query_one(KeyedList).highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    def show(self, rows: Sequence[RunRow], marked: Mapping[Path, int], order: str) -> None:
        """Show runs, with the numbers of those that are marked."""
        before = self.chosen
        self._rows, self._marked, self._order = rows, marked, order
        self._draw()
        places = {row.path: at for at, row in enumerate(rows)}
        if before is not None and before.path in places:
            self.query_one(KeyedList).highlighted = places[before.path]

    def _draw(self) -> None:
        width = self.content_size.width - 3  # padding, and the scrollbar
        if width <= 0:
            return
        self.query_one("#headings", Static).update(heading(width, self._order))
        self.query_one(KeyedList).replace(
            [Option(run_line(row, width, self._marked.get(row.path)), id=row.name) for row in self._rows]
        )

    def on_resize(self) -> None:
        """Lay the lines out in the new width."""
        self._draw()
