"""The first line of the screens before a run: the program's name and a message."""

from textual.content import Content
from textual.widgets import Static


class TopLine(Static):
    """One line: the name on the left, a message on the right."""

    DEFAULT_CSS = "TopLine { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._said = Content("")

    def say(self, words: Content) -> None:
        """Show another message."""
        self._said = words
        self.on_resize()

    def on_resize(self) -> None:
        """Lay the line out in the new width."""
        name = Content.styled("mptui", "bold $text-accent")
        said = self._said.truncate(max(0, self.content_size.width - name.cell_length - 2), ellipsis=True)
        gap = self.content_size.width - name.cell_length - said.cell_length
        self.update(Content.assemble(name, " " * max(2, gap), said), layout=False)
