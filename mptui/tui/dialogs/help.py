"""The help: the keys that do something now on a screen, and the signs of the timeline."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.widgets import Static

from mptui.tui.keys import PLACES, BoundKey, bindings, display, keys_of
from mptui.tui.widgets.basics import Dialog

_WHOLE = 66
"""Width of the box, in cells."""

_FRAME = 4
"""Lines of the box besides the keys."""

_CLOSE = "Esc: close"

_KEYS, _FEWER = 20, 14
"""Width of the column of keys, and its width on a screen that is too small for the box."""


class HelpScreen(Dialog[None]):
    """A list of keys and what they do.

    Args:
        where: The screen.
        keys: Its keys that do something now.
        ascii_only: Draw in ASCII.
    """

    BINDINGS = bindings("help")
    DEFAULT_CSS = """
    HelpScreen {
        VerticalScroll {
            width: 66;
            max-height: 100%;
            padding: 1 2;
        }
        Static { height: auto; }
    }
    """

    def __init__(self, where: str, keys: Sequence[BoundKey], *, ascii_only: bool) -> None:
        super().__init__()
        self._where = where
        self._keys = keys
        self._ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        """Lay out one block for each screen or widget with keys."""
        self._laid_out = self.app.size
        lines, subtitle = self._fitted(self._laid_out)
        with VerticalScroll() as box:
            box.border_title = "keys"
            box.border_subtitle = subtitle
            yield Static(lines, markup=False)

    def on_resize(self, event: Resize) -> None:
        """Lay out one line per key in the new size."""
        if event.size != self._laid_out:  # not at the first, which would lay out and draw twice
            self._laid_out = event.size
            lines, self.query_one(VerticalScroll).border_subtitle = self._fitted(event.size)
            self.query_one(Static).update(lines)

    def _fitted(self, size: Size) -> tuple[Content, str]:
        """Return the lines and the subtitle of the box on a screen of this size."""
        lines = self._lines(_KEYS if size.width >= _WHOLE else _FEWER)
        is_cut = len(lines) + _FRAME > size.height
        return Content("\n").join(lines), f"↑↓ PgUp PgDn: scroll · {_CLOSE}" if is_cut else _CLOSE

    def _lines(self, column: int) -> list[Content]:
        lines: list[Content] = []
        place = None
        for key in self._keys:
            if key.where != place:
                place = key.where
                title = PLACES[place].focused or "this screen"
                lines += [Content(""), Content.styled(title, "$quiet")] if lines else [Content("")][1:]
            lines.append(self._line(key, column))
        return [*lines, *self._signs(column)]

    def _signs(self, column: int) -> list[Content]:
        """Return what explains the signs of the timeline, where there is one."""
        if self._where != "live":
            return []
        from mptui.tui.widgets.ribbon import signs  # needs NumPy, and the first screen does not

        legend = [
            Content.assemble((f"{sign:>{column}}", "bold"), f"  {words}")
            for sign, words in signs(self._ascii_only)
        ]
        return [Content(""), Content.styled("signs of the timeline", "$quiet"), *legend]

    def _line(self, key: BoundKey, column: int) -> Content:
        keys = display(key, keys_of(self.app))
        return Content.assemble((f"{keys:>{column}}", "bold $footer-key-foreground"), f"  {key.help}")

    def action_close(self) -> None:
        """Close the help."""
        self.dismiss()
