"""What the live screen shows before the first point of its charts: a checklist, and pictures of the data."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content

from mptui import text as fmt
from mptui.data.pictures import SEAM
from mptui.events import ImagesGenerated
from mptui.runs.store.pictures import FOLDER
from mptui.runs.view.run_view import RunView
from mptui.runs.view.state import PreparationStep
from mptui.text import clean
from mptui.tui.run_source import RunSource
from mptui.tui.widgets.basics import Lines, Panel
from mptui.tui.widgets.panels import PicturePanel, fitted, opened_picture
from mptui.tui.widgets.sixteen import Colour, in_legend

if TYPE_CHECKING:
    from PIL.Image import Image

# The checklist of a preparation: what is done, what came of it, what is under way, and what was warned of
# --------------------------------------------------------------------------------------------------------

_TIME = 10
"""Least cells of the elapsed time of a step."""
_MARK = 2
_ROOMY = 8
"""Height from which words are wrapped, and not cut."""


class ChecklistPanel(Panel):
    """The steps of a preparation with their times; where not all fit, the newest ones."""

    DEFAULT_CSS = "ChecklistPanel { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__("preparing")
        self.now: float | None = None

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the steps, and below them the warnings."""
        now = view.time if self.now is None else max(self.now, view.time)
        most = 1 if self.content_size.height < _ROOMY else None
        lines = [line for step in view.preparation for line in _step_lines(step, view, now, width)[:most]]
        for warning in (line for line in view.log if line.tone in {"warn", "bad"}):
            wrapped = Content(warning.text).wrap(max(1, width - _MARK))
            marks = [Content.styled("▲ ", "$text-warning"), *[Content("  ")] * (len(wrapped) - 1)]
            lines += [mark + each for mark, each in zip(marks, wrapped, strict=True)]
        return lines[-max(1, self.content_size.height) :]


def _step_lines(step: PreparationStep, view: RunView, now: float, width: int) -> list[Content]:
    """Return the lines of a step; none of one that is over and found nothing."""
    if step.ended is not None:
        if not step.found:
            return []
        mark, words, took = ("✓ ", "$text-success"), step.found, _duration(step.ended - step.began)
    else:
        mark, words = ("▸ ", "bold $text-accent"), step.words
        if view.progress is not None:
            words += f" · {view.progress.done:,} of {view.progress.total:,}"
        took = fmt.duration(max(0.0, now - step.began))
        if step.expected_s is not None:
            took = f"{took} of about {fmt.duration(step.expected_s)}"
    took = took.rjust(_TIME)
    room = max(1, width - _MARK - len(took) - 1)
    parts = Content(words).wrap(room)
    first = Content.assemble(mark, parts[0].pad_right(room - parts[0].cell_length), " ")
    lines = [Content.assemble(first, (took, "$quiet"))]
    return lines + [Content.assemble("  ", (part.plain, "$quiet")) for part in parts[1:]]


def _duration(seconds: float) -> str:
    return fmt.duration(seconds) if seconds >= 0.5 else ""


# Pictures of the data: training images as the network gets them, with their classes or masks
# -------------------------------------------------------------------------------------------

_GAP = 2
_LEAST = 16
"""Cells of an image on which something is to be seen."""


class DataPanel(PicturePanel):
    """As many training images as fit, in pixels or half blocks.

    Args:
        ascii_only: Draw in ASCII.
    """

    DEFAULT_CSS = "DataPanel { width: 1fr; height: 1fr; }"

    def __init__(self, ascii_only: bool) -> None:
        super().__init__("data", ascii_only)
        self.run: Path | None = None
        self._drawn: tuple[object, Lines] = (None, ())

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the images; once for each size."""
        event, rows = view.data_pictures, self.content_size.height
        if event is None or self.run is None or rows <= 0:
            return []
        key = (event.path, event.time, width, rows)
        if self._drawn[0] != key:
            # a name in a journal says nothing of other folders
            sheet = opened_picture(self.run / FOLDER / Path(event.path).name)
            self._drawn = (key, [] if sheet is None else self._tiles(sheet, event, width, rows))
        return self._drawn[1]

    def _tiles(self, sheet: "Image", event: ImagesGenerated, width: int, rows: int) -> Lines:
        """Draw in as many columns as make the images largest, with the class below each."""
        across = (sheet.width + 1) // max(1, event.images)
        tiles = [
            sheet.crop((left, 0, left + across - 1, sheet.height))
            for left in range(0, sheet.width - across + 2, across)
        ]
        caption = 1 if event.labels else 0
        for count in (len(tiles), -(-len(tiles) // 2)):  # fewer ones, where all would be too small
            fits = {n: _scale(tiles[0], n, count, width, rows, caption) for n in range(1, count + 1)}
            columns = max(fits, key=lambda n: fits[n])
            if fits[columns] * tiles[0].width >= _LEAST:
                break
        tiles = tiles[:count]
        tile = (width + _GAP) // columns - _GAP
        down = max(1, rows // -(-count // columns) - caption)
        lines: list[Content] = []
        strips: list[tuple[int, Image]] = []
        for first in range(0, count, columns):
            size = (tile * self.cell[0], down * self.cell[1])
            shown = [self._scaled(each, event, size) for each in tiles[first : first + columns]]
            if self.graphics is None:
                drawn = [self.blocks(each) for each in shown]
            else:
                strips.append((caption if strips else 0, self.strip(shown, tile + _GAP)))
                drawn = [[Content("")] * -(-each.height // self.cell[1]) for each in shown]
            if words := event.labels[first : min(first + columns, count)]:
                drawn = [[*each, Content(clean(word))] for each, word in zip(drawn, words, strict=True)]
            padded = [[line.truncate(tile, ellipsis=True, pad=True) for line in block] for block in drawn]
            lines += (Content(" " * _GAP).join(parts) for parts in zip(*padded, strict=True))
        self.show_pixels(*strips)
        kind = " and masks" if _has_mask(tiles[0], event) else ""
        self.retitle(f"data · images{kind} as the network gets them")
        return lines[:rows]

    def _scaled(self, tile: "Image", event: ImagesGenerated, size: tuple[int, int]) -> "Image":
        """Scale an image to fit; in sixteen colours the mask beside it has those of its classes alone."""
        scaled = fitted(tile, *size)
        if self.in_sixteen and _has_mask(tile, event):
            across = (tile.width - SEAM) // 2
            mask = tile.crop((tile.width - across, 0, tile.width, tile.height))
            legend = [cast("Colour", colour) for _, colour in mask.getcolors(_MOST_CLASSES) or ()]
            box = scaled.width * (tile.width - across) // tile.width, 0, scaled.width, scaled.height
            if legend:
                scaled.paste(in_legend(scaled.crop(box), legend), box)
        return scaled


_MOST_CLASSES = 256


def _has_mask(tile: "Image", event: ImagesGenerated) -> bool:
    return not event.labels and tile.width > tile.height


def _scale(tile: "Image", columns: int, count: int, width: int, rows: int, caption: int) -> float:
    """Return how many cells a pixel gets with so many columns."""
    wide = (width + _GAP) // columns - _GAP
    down = rows // -(-count // columns) - caption
    return min(wide / tile.width, 2 * down / tile.height)


# Both, in place of the charts
# ----------------------------


class Preparing(Container):
    """What a run does before its first step, beside its data.

    Args:
        source: The run.
        ascii_only: Draw in ASCII.
    """

    def __init__(self, source: RunSource, *, ascii_only: bool) -> None:
        super().__init__()
        self._source = source
        self._checklist = ChecklistPanel()
        self._data = DataPanel(ascii_only)

    def compose(self) -> ComposeResult:
        """Lay out the checklist, and beside or below it the data."""
        yield self._checklist
        yield self._data

    def on_mount(self) -> None:
        """Show what is known."""
        self.show_time()
        self._data.show(self._source.view)

    def show_time(self) -> None:
        """Show the time that has passed, also without an event."""
        view = self._source.view
        self._checklist.now = None if self._source.finished else time.time()
        self._data.run = self._source.run
        self._data.display = view.data_pictures is not None
        self._checklist.show(view)
