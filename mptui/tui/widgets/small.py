"""Message instead of a screen if the terminal is too small."""

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static


class TooSmall(Static):
    """Names the needed size; visible only on a screen with the class -tiny or -flat."""

    DEFAULT_CSS = """
    TooSmall { display: none; width: 1fr; height: 1fr; content-align: center middle; text-align: center; }
    Screen.-tiny TooSmall, Screen.-flat TooSmall { display: block; }
    """

    def __init__(self, comfort: str = "") -> None:
        super().__init__(markup=False)
        self._comfort = comfort

    def on_resize(self, _event: Resize) -> None:
        """Show the needed and the actual size."""
        has = f"{self.app.size.width}x{self.app.size.height}"
        words = f"mptui needs 60x16 cells,\nthis terminal has {has}."
        self.update(Content(f"{words}\n\n{self._comfort}".rstrip()))
