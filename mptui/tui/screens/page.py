"""Base class of full screens: breakpoints, back, leave."""

from typing import ClassVar

from textual import on
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen

WIDTHS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-flat"), (16, "-short"), (20, "-tall"), (31, "-high")]
"""Breakpoints in cells, with the CSS class from each on."""


class Page(Screen[str]):
    """A screen of the app; `where` is its name in the table of keys."""

    where: ClassVar[str] = ""
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def on_compose(self) -> None:
        """Take the classes of the terminal's size before anything is styled and drawn without them."""
        self.update_classes(self.size_classes(self.app.size), update=False)

    @on(Resize)
    def _take_size_classes(self, event: Resize) -> None:
        self.update_classes(self.size_classes(event.size), animate=False)

    def size_classes(self, size: Size) -> dict[str, bool]:
        """Return each class that depends on the size of the screen, and whether it holds."""
        widths, heights = self.HORIZONTAL_BREAKPOINTS or [], self.VERTICAL_BREAKPOINTS or []
        held = {_reached(widths, size.width), _reached(heights, size.height)}
        return {name: name in held for _, name in widths + heights}

    def back(self) -> None:
        """Go to the screen before this one; the first one stays."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def leave(self) -> None:
        """Leave the app."""
        self.app.exit()


def _reached(breakpoints: list[tuple[int, str]], cells: int) -> str:
    return [name for least, name in breakpoints if cells >= least][-1]
