"""The charts of a run that is chosen in a list: its loss, and its first metric."""

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.widgets import Static

from mptui.runs.listing.rows import RunRow
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.widgets.chart import Chart, ChartSet, charts_of


class RunPreview(Container):
    """Two charts beside each other, with the name of the run above.

    Args:
        ascii_only: Draw in ASCII.
    """

    DEFAULT_CSS = """
    RunPreview {
        height: 1fr;
        #name { height: 1; padding: 0 1; }
        Chart { width: 1fr; }
    }
    """

    def __init__(self, *, ascii_only: bool) -> None:
        super().__init__()
        self._heading = Static(id="name", markup=False)
        self._charts = [Chart(mode="ascii" if ascii_only else "braille", fitted=True) for _ in range(2)]
        for chart in self._charts:
            chart.can_focus = False

    def compose(self) -> ComposeResult:
        """Lay out the name and the charts."""
        yield self._heading
        with Horizontal():
            yield from self._charts

    def show(self, row: RunRow, view: RunView) -> None:
        """Show a run."""
        state = row.state.replace("_", " ")
        self._heading.update(Content.assemble((clean(row.name, 80), "bold"), (f"   {state}", "$quiet")))
        names = charts_of(view)[: len(self._charts)]
        ChartSet(self._charts).show(view, dict(enumerate(names)))
