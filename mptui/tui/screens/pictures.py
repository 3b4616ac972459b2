"""The panel of validation samples: their pictures, what they are, and what the network predicts of them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from mptui import format as fmt
from mptui.data.core.class_colours import VOID, palette
from mptui.data.core.predictions import CAPTION
from mptui.runs.pictures.picture_files import FOLDER, PictureRecord, SampleRecord, read
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.widgets.panel import Lines
from mptui.tui.widgets.pictures.picture_panel import PicturePanel, fitted, opened_picture

if TYPE_CHECKING:
    from PIL.Image import Image

_GAP = 2
_COLUMN, _WIDE_COLUMN = 34, 60
"""Cells of a column, where there is room: of an image, and of an image with two masks beside it."""
_FEWEST = 3
"""Columns of a narrow screen."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPictures:
    """The pictures of a validation, read from its files: the record and the RGB image."""

    record: PictureRecord
    sheet: "Image"

    @classmethod
    def of(cls, run: Path, path: str) -> "LoadedPictures | None":
        """Read the pictures of the file that an event names; None if they are missing or damaged."""
        file = run / FOLDER / Path(path).name  # a name in a journal says nothing of other folders
        record, sheet = read(file), opened_picture(file)
        return None if record is None or sheet is None else cls(record, sheet)

    def picture(self, sample: SampleRecord) -> "Image":
        """Return the picture of a sample."""
        left, top, width, height = sample.box
        return self.sheet.crop((left, top, left + width, top + height))


class SamplesPanel(PicturePanel):
    """Shows the samples of a group, as many as fit; the others can be scrolled to.

    Attributes:
        loaded: The pictures; None: there are none.
        group: Name of the group.
        missing: What to say without pictures.
    """

    DEFAULT_CSS = "SamplesPanel { height: 1fr; }"

    def __init__(self, ascii_only: bool, *, id: str | None = None) -> None:
        super().__init__("samples", ascii_only, id=id)
        self.loaded: LoadedPictures | None = None
        self.group = self.missing = ""
        self._first = 0
        self._drawn: tuple[object, Lines] = (None, ())

    def choose(self, group: str) -> None:
        """Show another group, from its first sample on."""
        self.group, self._first = group, 0

    def scroll_rows(self, rows: int) -> None:
        """Scroll by so many rows of samples."""
        self._first = max(0, self._first + rows)

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the samples; once for each size and place."""
        rows = self.content_size.height
        if self.loaded is None:
            self.show_pixels(None)
            self._drawn = (None, ())
            return [Content.styled(self.missing, "$quiet")]
        key = (self.loaded, self.group, self._first, width, rows)
        if self._drawn[0] != key and rows > 0:
            samples = self.loaded.record.groups.get(self.group, [])
            drawn = self._tiles if self.graphics is None else self._page
            self._drawn = (key, drawn(self.loaded, samples, width, rows) if samples else [])
        return self._drawn[1]

    def _say(self, first: int, last: int, count: int, epoch: int) -> None:
        self.retitle(f"{self.group} · {first + 1}–{last} of {count} · epoch {epoch}")

    def _page(self, loaded: LoadedPictures, samples: list[SampleRecord], width: int, rows: int) -> Lines:
        """Show a part of the file by the terminal's graphics, with its words."""
        across, down = self.cell
        tops = sorted({sample.box[1] for sample in samples})
        height = CAPTION + max(sample.box[3] for sample in samples)
        fits = max(1, down * rows // height)
        self._first = max(0, min(self._first, len(tops) - fits))
        shown = tops[self._first : self._first + fits]
        part = loaded.sheet.crop((0, shown[0], loaded.sheet.width, shown[-1] + height))
        self.show_pixels(fitted(part, across * width, down * rows))
        columns = sum(sample.box[1] == tops[0] for sample in samples)
        last = min(len(samples), (self._first + len(shown)) * columns)
        self._say(self._first * columns, last, len(samples), loaded.record.epoch)
        return []

    def _tiles(self, loaded: LoadedPictures, samples: list[SampleRecord], width: int, rows: int) -> Lines:
        """Draw samples in characters, side by side, with words below each."""
        ratio = max(max(1, sample.box[2]) / max(1, sample.box[3]) for sample in samples)
        columns = max(1, width // _WIDE_COLUMN) if ratio > 2 else max(_FEWEST, width // _COLUMN)
        words = [_words(sample, loaded.record.classes) for sample in samples]
        captions, legend = len(words[0]), _legend(loaded.record) if samples[0].truth is None else []
        across = (width + _GAP) // columns - _GAP
        down = min(math.ceil(across / ratio / 2), max(1, rows - captions - len(legend)))
        across = min(across, math.floor(2 * down * ratio))
        columns = (width + _GAP) // (across + _GAP)
        fits = max(1, (rows - len(legend)) // (down + captions))
        total = -(-len(samples) // columns)
        self._first = max(0, min(self._first, total - fits))
        first = self._first * columns
        last = min(len(samples), first + fits * columns)
        self._say(first, last, len(samples), loaded.record.epoch)
        lines: list[Content] = []
        for start in range(first, last, columns):
            tiles = [
                self._tile(loaded.picture(samples[number]), words[number], across, down)
                for number in range(start, min(start + columns, last))
            ]
            lines += (Content(" " * _GAP).join(parts) for parts in zip(*tiles, strict=True))
        return [*lines, *legend]

    def _tile(self, picture: "Image", words: list[Content], across: int, down: int) -> list[Content]:
        """Return the lines of a sample, each `across` cells wide."""
        drawn = self.blocks(fitted(picture, across, 2 * down)) if picture.width and picture.height else []
        drawn += [Content("")] * (down - len(drawn))
        return [line.truncate(across, ellipsis=True, pad=True) for line in [*drawn, *words]]


def _words(sample: SampleRecord, classes: list[str]) -> list[Content]:
    """Return the lines below a sample."""
    file = Content.styled(clean(Path(sample.file).name), "$quiet")
    if sample.truth is None or sample.predicted is None:
        return [Content(f"{fmt.percent(sample.error)} wrong"), file]
    is_right = sample.truth == sample.predicted
    sure = "" if sample.probability is None else f"{100 * sample.probability:.0f} % "
    predicted = f"{'=' if is_right else '→'} {sure}{classes[sample.predicted]}"
    return [
        Content(classes[sample.truth]),
        Content.styled(predicted, "$text-success" if is_right else "$text-error"),
        file,
    ]


def _legend(record: PictureRecord) -> list[Content]:
    """Return a line with the colours of the classes."""
    colours = [VOID, *palette(record.classes).tolist()]
    parts = [
        Content.assemble(("██ ", "#{:02x}{:02x}{:02x}".format(*colour)), clean(name, 20))
        for name, colour in zip(["ignored", *record.classes], colours, strict=False)
    ]
    return [Content("  ").join([*parts[1:], parts[0]])]
