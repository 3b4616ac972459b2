"""Precision, device and step in one line each: the panels of a wide screen, folded for a small one."""

from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.live.device import device_line
from mptui.tui.widgets.live.precision import precision_line
from mptui.tui.widgets.live.step import step_line
from mptui.tui.widgets.panel import Lines, Panel, joined


class Folded(Panel):
    """Three lines without a frame."""

    DEFAULT_CSS = "Folded { border: none; height: 3; padding: 0 2; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._ascii_only = ascii_only

    def lines(self, view: RunView, width: int) -> Lines:
        """Say each panel in a line."""
        lines = (precision_line(view, self._ascii_only), device_line(view), step_line(view))
        return [joined(parts, width) for parts in lines]
