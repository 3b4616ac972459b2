"""The images panel: what a diffusion model has made, in half blocks or by the terminal's graphics."""

from pathlib import Path

from textual.content import Content

from mptui.events import ImagesGenerated
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.panel import Lines
from mptui.tui.widgets.pictures.picture_panel import PicturePanel, fitted, opened_picture

_FOLDER = "samples"


class ImagesPanel(PicturePanel):
    """Shows the last grid of images, scaled to the panel: two pixels in a cell, or those of the screen."""

    DEFAULT_CSS = "ImagesPanel { min-height: 8; }"

    def __init__(self, ascii_only: bool) -> None:
        super().__init__("images", ascii_only)
        self._drawn: tuple[object, Lines] = (None, ())

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
        image = opened_picture(path)
        if image is None:
            self.show_pixels(None)
            return [Content.styled(event.path or "not written", "$quiet")]
        across, down = self.cell
        pixels = fitted(image, across * width, down * rows)
        if self.graphics is None:
            return self.blocks(pixels)
        self.show_pixels(pixels)
        return []
