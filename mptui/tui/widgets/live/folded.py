"""The panels of the live screen in one line each, for a narrow screen."""

from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.live.live_panels import PANELS
from mptui.tui.widgets.panel import Lines, Panel, joined


class Folded(Panel):
    """Shows one line for each panel that has one, without a frame."""

    DEFAULT_CSS = "Folded { border: none; padding: 0 2; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._ascii_only = ascii_only
        self._folded = [spec.folded for spec in PANELS.values() if spec.folded is not None]
        self.styles.height = len(self._folded)

    def lines(self, view: RunView, width: int) -> Lines:
        """Return the line of each panel."""
        return [joined(folded(view, self._ascii_only), width) for folded in self._folded]
