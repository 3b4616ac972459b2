"""Base class of panels: frame, title, and repaint only after a change."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from textual.content import Content
from textual.widgets import Static

from mptui.runs.view.run_view import RunView
from mptui.text import clean

Lines = Sequence[Content]

_GAP = "   "


class Panel(Static):
    """A framed block of lines of a run's view. Subclasses implement `lines`."""

    DEFAULT_CSS = """
    Panel {
        text-wrap: nowrap;
        padding: 0 1;
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
    }
    """

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self._title = ""
        self._shown: Content | None = None
        self._view: RunView | None = None
        self.retitle(title)

    @abstractmethod
    def lines(self, view: RunView, width: int) -> Lines:
        """Return the content for `view` in `width` cells."""

    def retitle(self, title: str) -> None:
        """Change the title, if it differs."""
        title = clean(title, 60)
        if title != self._title:
            self._title = title
            self.border_title = Content(title)

    def show(self, view: RunView) -> None:
        """Show `view`; unchanged content is not repainted."""
        self._view = view
        width = self.content_size.width
        if width <= 0:
            return
        content = Content("\n").join(line.truncate(width, ellipsis=True) for line in self.lines(view, width))
        if self._shown is None or not self._shown.is_same(content):
            self._shown = content
            self.update(content, layout=False)

    def on_resize(self) -> None:
        """Redraw at the new width."""
        if self._view is not None:
            self.show(self._view)


def joined(parts: Iterable[Content], width: int) -> Content:
    """Join as many of `parts`, from the first on, as fit into a line of `width` cells."""
    line = Content("")
    for part in parts:
        longer = Content.assemble(line, _GAP if line else "", part)
        if line and longer.cell_length > width:
            break
        line = longer
    return line


def row(
    label: str, value: str, rest: str | Content = "", *, label_width: int = 12, width: int = 8
) -> Content:
    """Return a line with a quiet label, a value right-aligned in `width` cells, and an addition."""
    return Content.assemble(
        (label.ljust(label_width), "$quiet"), value.rjust(width), "  " if str(rest) else "", rest
    )
