"""Base class of full screens: breakpoints, back, leave."""

from typing import ClassVar

from textual.screen import Screen

WIDTHS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-flat"), (16, "-short"), (20, "-tall"), (31, "-high")]
"""Breakpoints in cells, with the CSS class from each on."""


class Page(Screen[str]):
    """A screen of the app; `where` is its name in the table of keys."""

    where: ClassVar[str] = ""
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def back(self) -> None:
        """Go to the screen before this one; the first one stays."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def leave(self) -> None:
        """Leave the app."""
        self.app.exit()
