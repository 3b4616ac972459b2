"""Base class of the screens above the live screen, which show a part of its view."""

import time
from collections.abc import Mapping

from mptui.runs.view.run_view import RunView
from mptui.tui.screens.page import Page
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.panel import Panel

POLLS_PER_SECOND = 4


class ViewPage(Page):
    """Shows a header and panels of a view, and redraws them after a change.

    Args:
        view: The view of the run, updated by the live screen below.
        keymap: The user's keys.
    """

    def __init__(self, view: RunView, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._view, self._keymap = view, keymap
        self._shown = -1

    def on_mount(self) -> None:
        """Start updating."""
        self.poll()
        self.set_interval(1 / POLLS_PER_SECOND, self.poll)

    def poll(self) -> None:
        """Show changes."""
        ended = self._view.finished is not None
        self.query_one(Header).show(self._view, self._view.time if ended else time.time())
        if self._view.version != self._shown:
            self._shown = self._view.version
            self.show()

    def show(self) -> None:
        """Show the view in all panels."""
        for panel in self.query("Panel"):
            assert isinstance(panel, Panel)
            panel.show(self._view)

    def back(self) -> None:
        """Close."""
        self.dismiss("back")

    def leave(self) -> None:
        """Quit as the live screen does."""
        self.dismiss("leave")
