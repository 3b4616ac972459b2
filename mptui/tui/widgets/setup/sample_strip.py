"""Some pictures of a data set side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from mptui.tui.widgets.pictures.half_blocks import half_blocks

if TYPE_CHECKING:
    from PIL.Image import Image


class SampleStrip(Static):
    """As many pictures as fit, cut to squares of the strip's height, in half blocks.

    Args:
        ascii_only: Draw in ASCII.
    """

    def __init__(self, *, ascii_only: bool, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self._ascii_only = ascii_only
        self._pictures: Sequence[Image] = ()

    def show(self, pictures: "Sequence[Image]") -> None:
        """Show these pictures, RGB."""
        if pictures is not self._pictures:
            self._pictures = pictures
            self.on_resize()

    def on_resize(self) -> None:
        """Draw as many as there is room for now."""
        width, rows = self.content_size
        shown = self._pictures[: (width + 1) // (2 * rows + 1)] if rows else ()
        drawn = [_square(picture, 2 * rows, self._ascii_only) for picture in shown]
        self.update(
            Content("\n").join(Content(" ").join(line) for line in zip(*drawn, strict=True)), layout=False
        )


def _square(picture: "Image", side: int, ascii_only: bool) -> list[Content]:
    """Return the lines of the middle of a picture, `side` cells wide and half as high."""
    from PIL import Image, ImageOps

    return half_blocks(ImageOps.fit(picture, (side, side), Image.Resampling.BOX), ascii_only=ascii_only)
