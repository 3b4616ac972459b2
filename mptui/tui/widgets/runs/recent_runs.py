"""The newest runs, beside the devices on the first screen."""

from collections.abc import Mapping, Sequence

from textual.content import Content
from textual.widgets import Static

from mptui.runs.listing.run_rows import RunRow
from mptui.tui.keys.bindings import KEYS, display
from mptui.tui.widgets.runs.run_lines import heading, run_line, summary_words


class RecentRuns(Static):
    """The newest runs, as many as fit."""

    DEFAULT_CSS = """
    RecentRuns {
        text-wrap: nowrap;
        padding: 0 1;
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
    }
    """

    def __init__(self, keymap: Mapping[str, str], *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        key = next(key for key in KEYS if key.id == "app.runs")
        self.border_subtitle = Content(f"{display(key, keymap)} all runs")
        self._rows: Sequence[RunRow] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there are no runs to show."""
        return not self._rows

    def show(self, rows: Sequence[RunRow]) -> None:
        """Show the newest of these runs."""
        self._rows = rows
        self.border_title = Content(f"recent runs · {summary_words(rows)}")
        self.on_resize()

    def on_resize(self) -> None:
        """Lay the lines out in the new size."""
        width, height = self.content_size
        if self._rows and width > 0:
            lines = [heading(width), *(run_line(row, width) for row in self._rows[: max(0, height - 1)])]
            self.update(Content("\n").join(lines), layout=False)
