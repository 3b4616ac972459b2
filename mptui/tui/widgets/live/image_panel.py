"""The images panel: what a diffusion model has made, in half blocks or by the terminal's graphics."""

from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from mptui.events import ImagesGenerated
from mptui.runs.view.run_view import RunView
from mptui.tui.terminal.graphics import Graphics, graphics_of, on_whole_cells
from mptui.tui.widgets.panel import Lines, Panel

if TYPE_CHECKING:
    from PIL.Image import Image

_FOLDER = "samples"
_MOST_PIXELS = 1 << 24
_HALF_BLOCK = "▀"
_RAMP = " .:-=+*#%@"
"""Characters by brightness, where there are no half blocks."""


class ImagesPanel(Panel):
    """Shows the last grid of images, scaled to the panel: two pixels in a cell, or those of the screen."""

    DEFAULT_CSS = "ImagesPanel { min-height: 8; }"

    def __init__(self, ascii_only: bool) -> None:
        super().__init__("images")
        self._ascii_only = ascii_only
        self._drawn: tuple[object, Lines] = (None, ())

    @cached_property
    def _graphics(self) -> Graphics | None:
        return None if self._ascii_only else graphics_of(self.app)

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the picture, or name its file; it is read once for each size."""
        event, rows = view.images, self.content_size.height
        if event is None or view.started is None or rows < 1:
            return []
        key = (event.path, event.step, width, rows)
        if self._drawn[0] != key:
            # a name in a journal says nothing of other folders
            path = Path(view.started.directory) / _FOLDER / Path(event.path).name
            self._drawn = (key, self._picture(path, event, width, rows))
        self.retitle(f"images of epoch {event.epoch}")
        return self._drawn[1]

    def _picture(self, path: Path, event: ImagesGenerated, width: int, rows: int) -> Lines:
        from PIL import Image  # only such runs need it

        across, down = (1, 2) if self._graphics is None else self._graphics.cell
        try:
            with Image.open(path, formats=["PNG"]) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError("no grid of ours")
                pixels = _fitted(image.convert("RGB"), across * width, down * rows)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            self._show_pixels(None)
            return [Content.styled(event.path or "not written", "$quiet")]
        if self._graphics is not None:
            self._show_pixels(pixels)
            return []
        return [self._row(pixels, top) for top in range(0, pixels.height, 2)]

    def _show_pixels(self, pixels: "Image | None") -> None:
        """Replace the picture in the terminal's graphics; None: by none."""
        self.remove_children()
        if self._graphics is not None and pixels is not None:
            picture, size = on_whole_cells(pixels, self._graphics.cell)
            shown = self._graphics.widget(picture)
            shown.styles.width, shown.styles.height = size
            self.mount(shown)

    def _row(self, pixels: "Image", top: int) -> Content:
        """Return the line of two rows of pixels."""
        upper, lower = (
            [pixels.getpixel((x, min(y, pixels.height - 1))) for x in range(pixels.width)]
            for y in (top, top + 1)
        )
        if self._ascii_only:
            brightness = [sum(map(_brightness, pair)) / 2 for pair in zip(upper, lower, strict=True)]
            return Content("".join(_RAMP[int(value * (len(_RAMP) - 1) / 255)] for value in brightness))
        styles = (f"{_hex(one)} on {_hex(other)}" for one, other in zip(upper, lower, strict=True))
        return Content.assemble(
            *((_HALF_BLOCK * len(list(cells)), style) for style, cells in groupby(styles))
        )


def _fitted(image: "Image", width: int, height: int) -> "Image":
    """Scale to fit; up by whole numbers only, so that pixels stay square."""
    from PIL.Image import Resampling

    scale = min(width / image.width, height / image.height)
    if scale >= 1:
        return image.resize((image.width * int(scale), image.height * int(scale)), Resampling.NEAREST)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Resampling.BOX)


def _rgb(pixel: object) -> tuple[int, int, int]:
    assert isinstance(pixel, tuple), "of an RGB image"
    red, green, blue = pixel
    return red, green, blue


def _brightness(pixel: object) -> float:
    return sum(_rgb(pixel)) / 3


def _hex(pixel: object) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_rgb(pixel))
