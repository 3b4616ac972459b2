"""Base class of panels with a picture: two pixels in a cell, or those of the screen."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from mptui.tui.terminal.graphics import Graphics, graphics_of, on_whole_cells
from mptui.tui.widgets.panel import Panel
from mptui.tui.widgets.pictures.half_blocks import half_blocks

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_PIXELS = 1 << 24


class PicturePanel(Panel):
    """Shows pictures in half blocks, or by the terminal's graphics.

    Args:
        title: Title of the panel.
        ascii_only: Draw in ASCII.
    """

    def __init__(self, title: str, ascii_only: bool, *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._ascii_only = ascii_only

    @cached_property
    def graphics(self) -> Graphics | None:
        """The terminal's graphics; None: there are none."""
        return None if self._ascii_only else graphics_of(self.app)

    @property
    def cell(self) -> tuple[int, int]:
        """Width and height in pixels of what a cell shows."""
        return (1, 2) if self.graphics is None else self.graphics.cell

    def show_pixels(self, pixels: "Image | None") -> None:
        """Replace the picture in the terminal's graphics; None: by none."""
        self.remove_children()
        if self.graphics is not None and pixels is not None:
            picture, size = on_whole_cells(pixels, self.graphics.cell)
            shown = self.graphics.widget(picture)
            shown.styles.width, shown.styles.height = size
            self.mount(shown)

    def blocks(self, pixels: "Image") -> list[Content]:
        """Return a picture as lines, two rows of pixels in each."""
        return half_blocks(pixels, ascii_only=self._ascii_only)


def opened_picture(path: Path) -> "Image | None":
    """Return a PNG file as RGB; None if it is missing, damaged, or larger than any of ours."""
    from PIL import Image  # only such runs need it

    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.convert("RGB") if image.width * image.height <= _MOST_PIXELS else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def fitted(image: "Image", width: int, height: int) -> "Image":
    """Scale to fit; up by whole numbers only, so that pixels stay square."""
    from PIL.Image import Resampling

    scale = min(width / image.width, height / image.height)
    if scale >= 1:
        return image.resize((image.width * int(scale), image.height * int(scale)), Resampling.NEAREST)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Resampling.BOX)
