"""The screen of pictures: validation samples with their predictions, confusions, generated images."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Static

from mptui import text as fmt
from mptui.data.pictures import CAPTION, EXTRA, HIT, MASK_PARTS, MISSED, VOID, bright
from mptui.events import ImagesGenerated
from mptui.runs.store.pictures import FOLDER, PictureRecord, SampleRecord, read
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.widgets.basics import KeyBar, Lines, Panel
from mptui.tui.widgets.header import Header
from mptui.tui.widgets.panels import ImagesPanel, PicturePanel, fitted, opened_picture
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from PIL.Image import Image


# The panel of validation samples: their pictures, what they are, and what the network predicts of them
# -----------------------------------------------------------------------------------------------------

_GAP = 2
_COLUMN, _WIDE_COLUMN = 34, 60
"""Cells of a column, where there is room: of an image, and of an image with two masks beside it."""
_LEAST_HALF = 9
"""Cells of height from which two rows of images with masks are shown in place of one."""
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
        self.group = group
        self._first = 0

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

    def _show_range(self, first: int, last: int, count: int, epoch: int) -> None:
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
        self._show_range(self._first * columns, last, len(samples), loaded.record.epoch)
        return []

    def _tiles(self, loaded: LoadedPictures, samples: list[SampleRecord], width: int, rows: int) -> Lines:
        """Draw samples in characters, side by side, with words below each."""
        ratio = max(max(1, sample.box[2]) / max(1, sample.box[3]) for sample in samples)
        columns = max(1, width // _WIDE_COLUMN) if ratio > 2 else max(_FEWEST, width // _COLUMN)
        has_masks = samples[0].truth is None
        words = [_words(sample, loaded.record.classes) for sample in samples]
        captions, legend = len(words[0]), _legend(loaded.record) if has_masks else []
        across = (width + _GAP) // columns - _GAP
        down = min(math.ceil(across / ratio / 2), max(1, rows - captions - len(legend)))
        if has_masks and (half := (rows - 1 - len(legend)) // 2 - captions) >= _LEAST_HALF:
            down = min(down, half)
        across = min(across, math.floor(2 * down * ratio))
        columns = (width + _GAP) // (across + _GAP)
        heading = [_heading(loaded.record, across, columns)] if has_masks else []
        fits = max(1, (rows - len(legend) - len(heading)) // (down + captions))
        total = -(-len(samples) // columns)
        self._first = max(0, min(self._first, total - fits))
        first = self._first * columns
        last = min(len(samples), first + fits * columns)
        self._show_range(first, last, len(samples), loaded.record.epoch)
        lines: list[Content] = []
        for start in range(first, last, columns):
            tiles = [
                self._tile(loaded.picture(samples[number]), words[number], across, down)
                for number in range(start, min(start + columns, last))
            ]
            lines += (Content(" " * _GAP).join(parts) for parts in zip(*tiles, strict=True))
        return [*heading, *lines, *legend]

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


def _parts(record: PictureRecord) -> tuple[str, ...]:
    return MASK_PARTS if record.version > 1 else MASK_PARTS[:-1]


def _heading(record: PictureRecord, across: int, columns: int) -> Content:
    """Return the names of the parts of a picture, above each of them, over all columns."""
    parts = _parts(record)
    ends = [across * number // len(parts) for number in range(len(parts) + 1)]
    names = "".join(
        part[: end - start - 1].ljust(end - start)
        for part, start, end in zip(parts, ends, ends[1:], strict=False)
    )
    return Content.styled((" " * _GAP).join([names] * columns), "$quiet")


def _legend(record: PictureRecord) -> list[Content]:
    """Return the lines with the colours of the errors and of the classes."""
    colours = bright(record.classes).tolist()
    names = [(clean(name, 20), colour) for name, colour in zip(record.classes, colours, strict=False)]
    errors = [("hit", HIT), ("missed", MISSED), ("extra", EXTRA)] if record.version > 1 else []
    return [_key(errors), _key([*names, ("ignored", VOID)])][not errors :]


def _key(names: Sequence[tuple[str, Sequence[int]]]) -> Content:
    parts = [Content.assemble(("██ ", "#{:02x}{:02x}{:02x}".format(*colour)), name) for name, colour in names]
    return Content("  ").join(parts)


# The screen of pictures: what the network predicts of validation images, or what it has made
# -------------------------------------------------------------------------------------------

_CONFUSION, _MADE = "confusion", "images made"


class PicturesScreen(ViewPage):
    """Shows the pictures of the last validation, or of that before the moment which the timeline shows.

    Args:
        view: The view of the run, updated by the live screen below.
        run: Directory of the run; None: that of its journal.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    where = "pictures"
    BINDINGS = bindings("pictures")
    DEFAULT_CSS = """
    PicturesScreen {
        #tabs { height: 1; padding: 0 2; text-wrap: nowrap; }
        ImagesPanel { height: 1fr; }
        &.-tiny, &.-flat {
            Header, #tabs, Panel, KeyBar { display: none; }
        }
    }
    """

    def __init__(
        self, view: RunView, run: Path | None, keymap: Mapping[str, str], *, ascii_only: bool
    ) -> None:
        super().__init__(view, keymap)
        self._run = run
        self._ascii_only = ascii_only
        self._asked: ImagesGenerated | None = None
        self._tab = self._chosen = ""

    def compose(self) -> ComposeResult:
        """Lay out the tabs, their panels, of which one is shown, and the keys."""
        yield Header()
        yield Static(id="tabs", markup=False)
        yield SamplesPanel(self._ascii_only, id="samples")
        yield ConfusionPanel(id="confusion")
        yield ImagesPanel(self._ascii_only)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    @property
    def _samples(self) -> SamplesPanel:
        return self.query_one(SamplesPanel)

    def show(self) -> None:
        """Show the view; read the files of its pictures if they are others than before."""
        event = self._view.pictures
        if event is None:
            self._samples.missing = "no pictures yet: they are made after each validation"
        elif event != self._asked:
            self._asked = event
            self._load(event)
        self._lay_out()
        super().show()

    @work(exclusive=True, group=KEYS_WAIT)
    async def _load(self, event: ImagesGenerated) -> None:
        started = self._view.started
        run = self._run or Path("" if started is None else started.directory)
        loaded = await in_background(lambda: LoadedPictures.of(run, event.path)) if event.path else None
        with suppress(NoMatches):  # the screen was closed
            self._samples.loaded = loaded
            self._samples.missing = (
                f"the pictures of epoch {event.epoch} are not on disk (logging.pictures keeps some)"
            )
            self.query_one(ConfusionPanel).record = None if loaded is None else loaded.record
            self._lay_out()
            super().show()

    def _lay_out(self) -> None:
        """Show the panel of the chosen tab; while it is not there, of the one before, else of the first."""
        tabs = self._tabs()
        tab = next((tab for tab in (self._chosen, self._tab, *tabs) if tab in tabs), "")
        if tab != self._tab:
            self._tab = tab
            self._samples.choose(tab)
        self._samples.display = tab not in {_CONFUSION, _MADE}
        self.query_one(ConfusionPanel).display = tab == _CONFUSION
        self.query_one(ImagesPanel).display = tab == _MADE
        names = (Content.styled(f" {name} ", "reverse" if name == tab else "$quiet") for name in tabs)
        self.query_one("#tabs", Static).update(Content(" ").join(names), layout=False)

    def _tabs(self) -> list[str]:
        loaded = self._samples.loaded
        tabs = [] if loaded is None else [name for name, them in loaded.record.groups.items() if them]
        if loaded is not None and loaded.record.confusion is not None:
            tabs.append(_CONFUSION)
        return [*tabs, _MADE] if self._view.images is not None else tabs

    def action_turn(self, tabs: int) -> None:
        """Show another tab."""
        there = self._tabs()
        if there:
            self._tab = self._chosen = (
                there[(there.index(self._tab) + tabs) % len(there)] if self._tab in there else there[0]
            )
            self._samples.choose(self._tab)
            self.show()

    def action_scroll(self, rows: int) -> None:
        """Scroll by so many rows of samples, or lines of the matrix."""
        panel = self.query_one(ConfusionPanel) if self._tab == _CONFUSION else self._samples
        panel.scroll_rows(rows)
        self.show()


# The panel of the confusion matrix: in full for few classes, else the pairs that are confused most
# -------------------------------------------------------------------------------------------------

MOST_IN_FULL = 30
"""Largest number of classes whose matrix is shown in full, where it fits."""

_NAME = 16
_EXACT = 10_000
"""Counts from here on are abbreviated."""
_MUCH, _SOME = 0.1, 0.02
"""Shares of a true class that are marked."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A confusion matrix by its cells that are not 0, as `PictureRecord.confusion`."""

    classes: list[str]
    cells: list[list[int]]

    @property
    def of_true(self) -> dict[int, int]:
        """The samples of each class that is there."""
        sums: dict[int, int] = {}
        for true, _, count in self.cells:
            sums[true] = sums.get(true, 0) + count
        return sums


class ConfusionPanel(Panel):
    """Shows which classes are taken for which.

    Attributes:
        record: What a validation has kept; None: nothing.
    """

    DEFAULT_CSS = "ConfusionPanel { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("confusion", id=id)
        self.record: PictureRecord | None = None
        self._first = 0

    def scroll_rows(self, rows: int) -> None:
        """Scroll by so many lines."""
        self._first = max(0, self._first + rows)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the matrix if it fits, else the pairs; scrolled."""
        record = self.record
        if record is None or record.confusion is None:
            return [Content.styled("no confusion matrix was kept", "$quiet")]
        matrix = _Matrix(record.classes, record.confusion)
        head, rows = self._full(matrix, width) or self._pairs(matrix, width)
        self.retitle(f"confusion · rows are true classes · epoch {record.epoch}")
        self._first = max(0, min(self._first, len(rows) + 1 - self.content_size.height))
        return [head, *rows[self._first :]]

    def _full(self, matrix: _Matrix, width: int) -> tuple[Content, list[Content]] | None:
        """Return the heading and the rows of the whole matrix; None if it is too large.

        Columns have the names of their classes where they all fit, else their numbers.
        """
        classes, sums = len(matrix.classes), matrix.of_true
        counts = {(true, predicted): count for true, predicted, count in matrix.cells}
        cell = 1 + max([3, *(len(_count(count)) for count in counts.values())])
        titles = [str(number) for number in range(classes)]
        longest = 1 + max((cell_len(clean(name)) for name in matrix.classes), default=0)
        if 4 + _NAME + classes * max(cell, longest) <= width:
            cell, titles = max(cell, longest), [clean(name) for name in matrix.classes]
        if classes > MOST_IN_FULL or 4 + _NAME + classes * cell > width:
            return None
        head = " " * (4 + _NAME) + "".join(" " * (cell - cell_len(title)) + title for title in titles)
        rows = [
            Content.assemble(
                (f"{true:>3} ", "$quiet"),
                f"{clean(name, _NAME - 1):<{_NAME}}",
                *(
                    _cell(counts.get((true, other), 0), sums.get(true, 0), other == true, cell)
                    for other in range(classes)
                ),
            )
            for true, name in enumerate(matrix.classes)
        ]
        return Content.styled(head, "$quiet"), rows

    def _pairs(self, matrix: _Matrix, width: int) -> tuple[Content, list[Content]]:
        """Return the heading and the pairs of classes that are confused, the most frequent first."""
        sums, name = matrix.of_true, max(8, min(40, (width - 24) // 2))
        rows = [
            Content.assemble(
                f"{clean(matrix.classes[true], name - 1):<{name}}",
                f"{clean(matrix.classes[other], name - 1):<{name}}",
                f"{_count(count):>8}",
                (f"{fmt.percent(count / sums[true]):>13}", _tone(count / sums[true])),
            )
            for true, other, count in matrix.cells
            if true != other and count
        ]
        if not rows:
            return Content.styled("no class is taken for another", "$quiet"), []
        return Content.styled(
            f"{'true':<{name}}{'predicted':<{name}}{'count':>8}{'of true':>13}", "$quiet"
        ), rows


def _count(count: int) -> str:
    return str(count) if count < _EXACT else fmt.short(float(f"{count:.3g}"))


def _cell(count: int, of_true: int, is_right: bool, width: int) -> tuple[str, str]:
    """Return a count aligned right in `width` cells, and its style."""
    if not count:
        return "·".rjust(width), "$quiet"
    return _count(count).rjust(width), "bold $text-success" if is_right else _tone(count / of_true)


def _tone(share: float) -> str:
    """Return the style of a share of wrong predictions."""
    return "bold $text-error" if share >= _MUCH else "$text-warning" if share >= _SOME else ""
