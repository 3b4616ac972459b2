"""The panel of validation samples: their pictures, what they are, and what the network predicts of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click

from mptui import text as fmt
from mptui.data.pictures import BY_CLASS, EXTRA, HIT, MASK_PARTS, MISSED, SEAM, VOID, ClassShare, bright
from mptui.runs.store.pictures import FOLDER, PictureRecord, SampleRecord, read
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.terminal.graphics import sign_of
from mptui.tui.widgets.basics import Lines, bar, fit
from mptui.tui.widgets.panels import PicturePanel, fitted, opened_picture
from mptui.tui.widgets.sixteen import Colour, in_legend, sixteen_of

if TYPE_CHECKING:
    from PIL.Image import Image


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

    def having(self, words: Sequence[str]) -> "LoadedPictures":
        """Return these pictures without the samples that lack one of these words, of small letters."""
        classes = self.record.classes

        def has_all(sample: SampleRecord) -> bool:
            told = f"{_name(classes, sample.truth)} {sample.file}".lower()
            return all(word in told for word in words)

        groups = {name: [each for each in them if has_all(each)] for name, them in self.record.groups.items()}
        return replace(self, record=replace(self.record, groups=groups))

    def picture(self, sample: SampleRecord) -> "Image":
        """Return the picture of a sample."""
        left, top, width, height = sample.box
        right, bottom = min(left + width, self.sheet.width), min(top + height, self.sheet.height)
        return self.sheet.crop((left, top, max(right, left + 1), max(bottom, top + 1)))


# Where the samples of a group stand: in rows, or in a row for each class
# -----------------------------------------------------------------------

_GAP = 2
_COLUMN, _WIDE_COLUMN, _CLASS_COLUMN = 34, 60, 20
"""Cells of a column, where there is room: of an image, of one with masks beside it, in a row of a class."""
_LEAST_HALF = 9
"""Cells of height from which two rows of samples are shown in place of one."""
_FEWEST = 3
"""Columns of a narrow screen."""
_LEAST_WORDS = 18
"""Cells that the words below a sample need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of samples: their places in the group, and the class that all are of, or ""."""

    title: str
    places: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """How a group is laid out.

    Attributes:
        rows: The rows.
        columns: Largest number of samples in a row.
        tile: Cells of a column.
        size: Columns and rows of cells in which a picture has to fit.
        fits: Rows of samples that are shown at once.
    """

    rows: Sequence[_Row]
    columns: int
    tile: int
    size: tuple[int, int]
    fits: int

    @classmethod
    def of(cls, record: PictureRecord, group: str, width: int, rows: int, cell: tuple[int, int]) -> "_Grid":
        """Lay out a group with samples in so many cells, each of so many pixels."""
        samples = record.groups[group]
        ratio = _ratio(samples) * cell[1] / cell[0]
        runs = [list(range(len(samples)))]
        if group == BY_CLASS:
            by_class = groupby(runs[0], key=lambda place: samples[place].truth)
            runs = [list(run) for _, run in by_class]
            columns = min(max(map(len, runs)), max(_FEWEST, width // _CLASS_COLUMN))
        else:
            is_wide = _ratio(samples) > 2
            columns = max(1, width // _WIDE_COLUMN) if is_wide else max(_FEWEST, width // _COLUMN)
        room = rows - len(_legend(record, samples)) - _has_masks(samples)
        words = _captions(samples) + (group == BY_CLASS)
        across = (width + _GAP) // columns - _GAP
        down = min(math.ceil(across / ratio), max(1, room - words))
        if (half := room // 2 - words) >= _LEAST_HALF:
            down = min(down, half)
        across = max(1, min(across, max(math.floor(down * ratio), _LEAST_WORDS)))
        down = max(math.ceil(_cells(sample, (across, down), cell)[1]) for sample in samples)
        if group == BY_CLASS:
            laid = [
                _Row(title=_name(record.classes, samples[run[0]].truth), places=run[:columns]) for run in runs
            ]
        else:
            columns = (width + _GAP) // (across + _GAP)
            starts = range(0, len(samples), columns)
            laid = [_Row(title="", places=runs[0][start : start + columns]) for start in starts]
        return cls(
            rows=laid,
            columns=columns,
            tile=(width + _GAP) // columns - _GAP,
            size=(across, down),
            fits=max(1, room // (down + words)),
        )

    def row_of(self, place: int) -> int:
        """Return the number of the row with a sample, of the last one if it is not shown."""
        return next(
            (number for number, row in enumerate(self.rows) if place in row.places), len(self.rows) - 1
        )

    def beside(self, place: int, samples: int) -> int:
        """Return the place of the sample so many after, or before."""
        places = [each for row in self.rows for each in row.places]
        now = places.index(place) if place in places else 0
        return places[max(0, min(now + samples, len(places) - 1))]

    def below(self, place: int, rows: int) -> int:
        """Return the place of the sample so many rows below, or above."""
        now = self.row_of(place)
        column = self.rows[now].places.index(place) if place in self.rows[now].places else 0
        there = self.rows[max(0, min(now + rows, len(self.rows) - 1))].places
        return there[min(column, len(there) - 1)]


def _ratio(samples: Sequence[SampleRecord]) -> float:
    """Return the width of the widest picture, in units of its height."""
    return max(max(1, sample.box[2]) / max(1, sample.box[3]) for sample in samples)


def _cells(sample: SampleRecord, size: tuple[int, int], cell: tuple[int, int]) -> tuple[float, float]:
    """Return the columns and rows of a picture that `fitted` has made fit into such a size."""
    _, _, width, height = (max(1, each) for each in sample.box)
    scale = min(size[0] * cell[0] / width, size[1] * cell[1] / height)
    scale = int(scale) if scale >= 1 else scale
    return width * scale / cell[0], height * scale / cell[1]


def _has_masks(samples: Sequence[SampleRecord]) -> bool:
    return samples[0].truth is None


# The panel: rows of samples, of which one is chosen, or the chosen one large
# ---------------------------------------------------------------------------


class SamplesPanel(PicturePanel):
    """Shows the samples of a group, as many as fit; the others can be gone to.

    Attributes:
        loaded: The pictures; None: there are none.
        group: Name of the group.
        missing: What to say without pictures.
        large: Whether the chosen sample is shown alone.
    """

    DEFAULT_CSS = "SamplesPanel { height: 1fr; }"

    def __init__(self, ascii_only: bool, *, id: str | None = None) -> None:
        super().__init__("samples", ascii_only, id=id)
        self.loaded: LoadedPictures | None = None
        self.group = self.missing = ""
        self.large = False
        self._pair = 0
        self._place = self._first = 0
        self._grid: _Grid | None = None
        self._tops: list[tuple[int, _Row]] = []
        self._laid_out: object = None
        self._blocks: dict[int, list[Content]] = {}
        self._in_pixels: object = None
        self._drawn: tuple[object, Lines] = (None, ())

    @property
    def chosen(self) -> SampleRecord | None:
        """The chosen sample; None: there is none."""
        samples = [] if self.loaded is None else self.loaded.record.groups.get(self.group, [])
        return samples[min(self._place, len(samples) - 1)] if samples else None

    def choose(self, group: str) -> None:
        """Show another group, from its first sample on."""
        self.group = group
        self.close()
        self._place = self._first = 0

    def open(self) -> None:
        """Show the chosen sample large, then its other parts if some are left out, then all again."""
        if not self.large:
            self.large = True
        elif self._pair == 0 and len(self._shown_parts()) < len(MASK_PARTS):
            self._pair = 1
        else:
            self.close()

    def close(self) -> None:
        """Show all samples."""
        self.large = False
        self._pair = 0

    def move(self, samples: int) -> None:
        """Choose the sample so many after, or before."""
        if self._grid is not None:
            self._place = self._grid.beside(self._place, samples)

    def scroll_rows(self, rows: int) -> None:
        """Choose a sample so many rows below, or above; of a large one, the next or the one before."""
        if self._grid is not None:
            self._place = (self._grid.beside if self.large else self._grid.below)(self._place, rows)

    def on_click(self, event: Click) -> None:
        """Choose the sample at the pointer; the second click shows it large, or all again."""
        # of the screen: those of the event are the places in the picture that it came from
        inside, grid = self.content_region.contains_point(event.screen_offset), self._grid
        if not inside or grid is None or self._view is None:
            return
        at = event.screen_offset - self.content_region.offset
        if not self.large:
            row = next((row for top, row in reversed(self._tops) if top <= at.y), None)
            column = at.x // (grid.tile + _GAP)
            if row is None or column >= len(row.places):
                return
            self._place = row.places[column]
        if event.chain == 2:
            self.open()
        self.show(self._view)

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the samples; once for each size and place."""
        rows = self.content_size.height
        if self.loaded is None or self.chosen is None:
            if self._in_pixels is not None:
                self._in_pixels = None
                self.show_pixels()
            self._grid = self._laid_out = None
            self._drawn = (None, ())
            return [Content.styled(self.missing, "$quiet")]
        if rows <= 0:
            return self._drawn[1]
        size = (self.loaded, self.group, width, rows)
        if self._laid_out != size:
            self._grid = _Grid.of(self.loaded.record, self.group, width, rows, self.cell)
            self._laid_out, self._blocks = size, {}
            self._place = self._grid.beside(self._place, 0)
        key = (size, self._place, self.large, self._pair)
        if self._drawn[0] != key:
            self._drawn = (key, self._large(self.chosen, width, rows) if self.large else self._rows())
        return self._drawn[1]

    def _rows(self) -> Lines:
        """Draw the rows around the chosen sample."""
        loaded, grid = self.loaded, self._grid
        assert loaded is not None
        assert grid is not None
        record, samples = loaded.record, loaded.record.groups[self.group]
        now = grid.row_of(self._place)
        self._first = max(0, min(max(self._first, now - grid.fits + 1), now, len(grid.rows) - grid.fits))
        shown = grid.rows[self._first : self._first + grid.fits]
        self._tell(shown)
        lines = [_heading(record, samples, grid, self.cell)] if _has_masks(samples) else []
        tops = []
        self._tops = []
        for row in shown:
            self._tops.append((len(lines), row))
            if row.title:
                lines.append(Content.styled(clean(row.title), "bold"))
            tops.append(len(lines))
            tiles = [
                [*self._picture(place), *self._words(samples[place], grid.tile, place, row)]
                for place in row.places
            ]
            padded = [[fit(line, grid.tile) for line in tile] for tile in tiles]
            lines += (Content(" " * _GAP).join(parts) for parts in zip(*padded, strict=True))
        key = (self._laid_out, self._first)
        if self._in_pixels != key:
            self._in_pixels = key
            self.show_pixels(*self._strips(shown, tops))
        return [*lines, *_legend(record, samples, in_signs=self.in_signs, in_sixteen=self.in_sixteen)]

    def _tell(self, shown: Sequence[_Row]) -> None:
        """Say in the title which samples are shown."""
        assert self.loaded is not None
        assert self._grid is not None
        record, rows = self.loaded.record, self._grid.rows
        self.subtitle("")
        if self.group == BY_CLASS:
            first = rows.index(shown[0]) + 1
            words = f"{_from_to(first, first + len(shown) - 1)} of {len(rows)} classes, the worst of each"
        else:
            count = len(record.groups[self.group])
            words = f"{_from_to(shown[0].places[0] + 1, shown[-1].places[-1] + 1)} of {count}"
        self.retitle(f"{self.group} · {words} · epoch {record.epoch}")

    def _picture(self, place: int) -> list[Content]:
        """Return the lines of a picture; the terminal's graphics cover empty ones."""
        assert self._grid is not None
        if place not in self._blocks:
            drawn = self.blocks(self._fitted(place)) if self.graphics is None else []
            self._blocks[place] = drawn + [Content("")] * (self._grid.size[1] - len(drawn))
        return self._blocks[place]

    def _fitted(self, place: int) -> "Image":
        """Return a picture that fits into its cells."""
        assert self.loaded is not None
        assert self._grid is not None
        (across, down), (wide, high) = self._grid.size, self.cell
        sample = self.loaded.record.groups[self.group][place]
        return self._scaled(sample, self.loaded.picture(sample), across * wide, down * high, MASK_PARTS)

    def _scaled(
        self, sample: SampleRecord, picture: "Image", width: int, height: int, parts: Sequence[str]
    ) -> "Image":
        """Scale a picture of a sample to fit; in sixteen colours its masks have those of the legend alone."""
        assert self.loaded is not None
        scaled = fitted(picture, width, height)
        if sample.truth is None and self.in_sixteen:
            _take_sixteen(scaled, picture, self.loaded.record, parts)
        return scaled

    def _strips(self, shown: Sequence[_Row], tops: Sequence[int]) -> "Iterator[tuple[int, Image]]":
        """Yield the pictures of each row as one, with the lines between it and the one above."""
        if self.graphics is None:
            return
        assert self._grid is not None
        below = 0
        for row, top in zip(shown, tops, strict=True):
            strip = self.strip([self._fitted(place) for place in row.places], self._grid.tile + _GAP)
            yield top - below, strip
            below = top - -strip.height // self.cell[1]

    def _words(self, sample: SampleRecord, width: int, place: int, row: _Row) -> list[Content]:
        """Return the lines below a sample; in a row of a class its name is above."""
        assert self.loaded is not None
        classes, samples = self.loaded.record.classes, self.loaded.record.groups[self.group]
        mark = ("▸ ", "bold $text-accent") if place == self._place else ("  ", "")
        file = (clean(Path(sample.file).name), "$quiet")
        what = (_name(classes, sample.truth), "bold")
        if sample.truth is None:
            what = (f"{fmt.percent(sample.error)} wrong", "")
        said = () if row.title else (what, "  ")
        bars = _bars(sample, classes, width)
        missing = [Content("")] * (_most_bars(samples) - len(bars))
        return [Content.assemble(mark, *said, file), *bars, *missing]

    def _large(self, sample: SampleRecord, width: int, rows: int) -> Lines:
        """Draw the chosen sample as large as fits, with its words beside it, or below one with masks."""
        loaded = self.loaded
        assert loaded is not None
        record, samples = loaded.record, loaded.record.groups[self.group]
        self.subtitle("")
        self.retitle(f"{self.group} · {samples.index(sample) + 1} of {len(samples)} · epoch {record.epoch}")
        if sample.truth is None:
            words = self._words_below(sample, width)
            parts = self._shown_parts()
            if len(parts) < len(_parts(record)):
                self.subtitle(f"{self._pair + 1} of {len(_PAIRS)}: {' and '.join(parts)}")
            picture = _with_parts(loaded.picture(sample), record, parts)
            drawn, across = self._alone(picture, width, rows - 1 - len(words), parts)
            return [_parts_named(parts, across), *drawn, *words]
        drawn, across = self._alone(loaded.picture(sample), max(1, width - _BESIDE - _GAP), rows)
        words = _words_beside(sample, record.classes, width - across - _GAP)
        sides = zip_longest(drawn, words, fillvalue=Content(""))
        return [Content.assemble(fit(line, across), " " * _GAP, word) for line, word in sides]

    def _words_below(self, sample: SampleRecord, width: int) -> list[Content]:
        """Return the lines below a large picture with masks."""
        assert self.loaded is not None
        record = self.loaded.record
        wrong = Content(f"{fmt.percent(sample.error)} wrong  ")
        file = _file(sample, width)
        if len(file) == 1 and wrong.cell_length + file[0].cell_length <= width:
            file = [Content.assemble(wrong, file[0])]
        else:
            file.insert(0, wrong)
        legend = _legend(
            record, record.groups[self.group], in_signs=self.in_signs, in_sixteen=self.in_sixteen
        )
        return [*file, *legend]

    def _shown_parts(self) -> tuple[str, ...]:
        """Return the parts of the chosen sample that are shown large: two, where four are much smaller."""
        assert self.loaded is not None
        sample, parts = self.chosen, _parts(self.loaded.record)
        if sample is None or sample.truth is not None or len(parts) < len(MASK_PARTS):
            return parts
        width, (wide, high) = self.content_size.width, self.cell
        rows = self.content_size.height - 1 - len(self._words_below(sample, width))
        whole = self.loaded.picture(sample)
        two = _with_parts(whole, self.loaded.record, _PAIRS[0])
        sizes = [fitted(each, width * wide, max(1, rows) * high).height for each in (whole, two)]
        return parts if sizes[1] < _WORTH * sizes[0] else _PAIRS[self._pair]

    def _alone(
        self, picture: "Image", width: int, rows: int, parts: Sequence[str] = ()
    ) -> tuple[list[Content], int]:
        """Draw the chosen sample, below the names of its parts if it has some; return its lines and cells."""
        (wide, high), key = self.cell, (self._laid_out, self._place, self._pair, "large")
        assert self.chosen is not None
        picture = self._scaled(self.chosen, picture, width * wide, max(1, rows) * high, parts)
        if self._in_pixels != key:
            self._in_pixels = key
            self.show_pixels((int(bool(parts)), picture))
        nothing = [Content("")] * -(-picture.height // high)
        return nothing if self.graphics is not None else self.blocks(picture), -(-picture.width // wide)


_PAIRS = ("image", "errors"), ("truth", "prediction")
_WORTH = 1.2
"""How much higher two parts of a picture have to be than all four, to be shown without the others."""
_BESIDE = 32
"""Cells for the words beside a large picture."""


# What is said of a sample
# ------------------------


def _from_to(first: int, last: int) -> str:
    return f"{first}–{last}" if last > first else str(first)


def _name(classes: Sequence[str], number: int | None) -> str:
    return "" if number is None else classes[number]


def _top(sample: SampleRecord) -> list[ClassShare]:
    """Return the most probable classes; files of earlier versions know one."""
    if sample.top or sample.predicted is None:
        return sample.top
    return [ClassShare(sample.predicted, math.nan if sample.probability is None else sample.probability)]


def _most_bars(samples: Sequence[SampleRecord]) -> int:
    return max(len(_top(sample)) for sample in samples)


def _bars(sample: SampleRecord, classes: Sequence[str], width: int) -> list[Content]:
    """Return a bar for each of the most probable classes; the right one and a wrong first have a sign."""
    lines, top = [], _top(sample)
    longest = max((cell_len(classes[each.number]) for each in top), default=0)
    name = max(1, min(longest, width - 2 - _PERCENT - _LEAST_BAR))
    for place, each in enumerate(top):
        sign, tone = ("✗ ", "$text-error") if place == 0 else ("  ", "$quiet")
        if each.number == sample.truth:
            sign, tone = "✓ ", "$text-success"
        room = max(0, width - 2 - name - 1 - _PERCENT)
        share = f"{100 * each.probability:.0f} %" if math.isfinite(each.probability) else fmt.UNKNOWN
        shown = bar(each.probability, room, tone)
        lines.append(
            Content.assemble((sign, tone), fit(classes[each.number], name), " ", shown, share.rjust(_PERCENT))
        )
    return lines


_PERCENT, _LEAST_BAR = 6, 3
"""Cells of a probability, and of a bar with the cell before it."""


def _words_beside(sample: SampleRecord, classes: Sequence[str], width: int) -> list[Content]:
    """Return the lines beside a large picture."""
    truth = Content.assemble(("truth  ", "$quiet"), (_name(classes, sample.truth), "bold"))
    error = Content.assemble(("loss   ", "$quiet"), fmt.figure(sample.error))
    nothing, bars = Content(""), _bars(sample, classes, width)
    return [truth, nothing, *bars, nothing, error, nothing, *_file(sample, width)]


def _captions(samples: Sequence[SampleRecord]) -> int:
    """Return the number of lines below each sample."""
    return 1 + _most_bars(samples)


def _file(sample: SampleRecord, width: int) -> list[Content]:
    """Return the whole name of a file, in as many lines as it takes."""
    name = clean(sample.file)
    return [
        Content.styled(name[start : start + width], "$quiet") for start in range(0, len(name), max(1, width))
    ]


def _parts(record: PictureRecord) -> tuple[str, ...]:
    return MASK_PARTS if record.version > 1 else MASK_PARTS[:-1]


def _heading(
    record: PictureRecord, samples: Sequence[SampleRecord], grid: _Grid, cell: tuple[int, int]
) -> Content:
    """Return the names of the parts of a picture, above each of them, over all columns."""
    across, _ = _cells(samples[0], grid.size, cell)
    names = fit(_parts_named(_parts(record), round(across)), grid.tile)
    return Content(" " * _GAP).join([names] * min(grid.columns, len(samples)))


def _with_parts(picture: "Image", record: PictureRecord, names: Sequence[str]) -> "Image":
    """Return the parts of a picture with these names, side by side."""
    parts = _parts(record)
    across = (picture.width - SEAM * (len(parts) - 1)) // len(parts)
    found = picture.crop((0, 0, (across + SEAM) * len(names) - SEAM, picture.height))
    for place, name in enumerate(names):
        left = parts.index(name) * (across + SEAM)
        found.paste(picture.crop((left, 0, left + across, picture.height)), (place * (across + SEAM), 0))
    return found


def _parts_named(parts: Sequence[str], across: int) -> Content:
    """Return the names of the parts of a picture that is so many cells wide."""
    ends = [across * number // len(parts) for number in range(len(parts) + 1)]
    names = (
        _part_name(part, max(0, end - start - 1)).ljust(end - start)
        for part, start, end in zip(parts, ends, ends[1:], strict=False)
    )
    return Content.styled("".join(names), "$quiet")


_SHORTER = {"prediction": "predicted"}


def _part_name(part: str, room: int) -> str:
    return (part if len(part) <= room else _SHORTER.get(part, part))[:room]


def _class_colours(record: PictureRecord) -> list[Colour]:
    """Return the colour of each class in pictures."""
    known = bright(record.classes).tolist()
    return [(red, green, blue) for red, green, blue in known[: len(record.classes)]]


_MOST_COLOURS = 1 << 24


def _take_sixteen(scaled: "Image", picture: "Image", record: PictureRecord, parts: Sequence[str]) -> None:
    """Give each pixel of masks and errors of a scaled picture the colour of sixteen that it is nearest to.

    Those that scaling has mixed would be greys.
    """
    classes, errors = _class_colours(record), [(0, 0, 0), HIT, MISSED, EXTRA]
    parts = [part for part in parts if part in _parts(record)]
    scale, step = scaled.width / picture.width, (picture.width + SEAM) / len(parts)
    for number, part in enumerate(parts):
        if part == MASK_PARTS[0]:
            continue
        whole = picture.crop((round(number * step), 0, round((number + 1) * step) - SEAM, picture.height))
        is_void = any(colour == VOID for _, colour in whole.getcolors(_MOST_COLOURS) or ())
        legend = errors if part == "errors" else classes
        legend = [*legend, VOID] if is_void else legend
        # within the seams
        box = math.ceil(scale * number * step), 0, int(scale * ((number + 1) * step - SEAM)), scaled.height
        scaled.paste(in_legend(scaled.crop(box), legend), box)


def _legend(
    record: PictureRecord,
    samples: Sequence[SampleRecord],
    *,
    in_signs: bool = False,
    in_sixteen: bool = False,
) -> list[Content]:
    """Return the lines with the colours of errors and of classes, or their signs; none without masks."""
    if not _has_masks(samples):
        return []
    classes = zip(record.classes, _class_colours(record), strict=True)
    names = [(clean(name, 20), colour) for name, colour in classes]
    errors = [("hit", HIT), ("missed", MISSED), ("extra", EXTRA)] if record.version > 1 else []
    keys = [errors, [*names, ("ignored", VOID)]][not errors :]
    if in_sixteen:
        keys = [[(name, sixteen_of(colour)) for name, colour in key] for key in keys]
    return [_key(key, in_signs) for key in keys]


def _key(names: Sequence[tuple[str, Sequence[int]]], in_signs: bool) -> Content:
    """Return names with their colours, framed, as one of them may be that of the screen."""
    if in_signs:
        return Content("  ".join(f"[{sign_of(colour) * 2}] {name}" for name, colour in names))
    parts = [
        Content.assemble(
            ("▕", "$quiet"), ("██", "#{:02x}{:02x}{:02x}".format(*colour)), ("▏ ", "$quiet"), name
        )
        for name, colour in names
    ]
    return Content("  ").join(parts)
