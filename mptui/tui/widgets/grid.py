"""The grid of the live charts: what a person chooses of it, and which chart is where."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size

from mptui.tui.widgets.chart import Chart

LEFT = (0, 1, *range(4, 18))
RIGHT = (2, 3)
"""Numbers of the charts beside and below the panels; they are filled in the order of their numbers."""

AT_FIRST = LEFT[:4]
"""Charts on the left that are there from the beginning; others are made when a grid has a place for them."""

MOST = 4
"""Largest number of rows, and of columns."""

_LEAST_WIDTH, _LEAST_HEIGHT = 28, 6
"""Cells of a chart with its frame."""
_PANELS = 48
"""Cells of the panels beside the charts of a wide screen."""
_LINES_OF_A_NARROW = 14
"""Lines of a narrow screen for all but charts."""


@dataclass(frozen=True, slots=True)
class GridChoice:
    """What a person has chosen.

    Attributes:
        words: Names and globs of metrics, with commas between them; "": all metrics.
        rows: Rows of charts on the left; 0: as it fits.
        columns: Columns of charts on the left; 0: as it fits.
    """

    words: str = ""
    rows: int = 0
    columns: int = 0

    @property
    def text(self) -> str:
        """The choice for a file: `2x3 loss, top*`."""
        return f"{self.rows}x{self.columns} {self.words}"

    @classmethod
    def of_text(cls, text: str) -> "GridChoice":
        """Return the choice of a file; of another text, none."""
        found = re.fullmatch(rf"([0-{MOST}])x([0-{MOST}]) (.*)", text)
        return cls() if found is None else cls(found[3], int(found[1]), int(found[2]))

    def stepped(self, rows: int, columns: int, room: "Room") -> "GridChoice | None":
        """Return the choice with so many more rows and columns, none as it fits; None: there is no room."""
        given = [self.rows, self.columns]
        for axis, way in enumerate((rows, columns)):
            if way:
                given[axis] = max(0, (given[axis] or room.usual[axis]) + way)
        if any(each > most for each, most in zip(given, room.most, strict=True)):
            return None
        return replace(self, rows=given[0], columns=given[1])


@dataclass(frozen=True, slots=True)
class Room:
    """The room for charts on a screen.

    Attributes:
        usual: Rows and columns on the left, if nothing is chosen.
        most: The largest number of rows and columns that fit.
        right: Charts below the panels.
    """

    usual: tuple[int, int]
    most: tuple[int, int]
    right: Sequence[int] = ()

    @classmethod
    def on(cls, size: Size, classes: dict[str, bool], *, has_images: bool) -> "Room":
        """Return the room on a screen of this size, with the classes of its breakpoints."""
        is_wide, places = classes["-wide"], zip(RIGHT, (classes["-high"], classes["-more"]), strict=True)
        height = size.height * 3 // 4 - 4 if is_wide else size.height - _LINES_OF_A_NARROW
        width = size.width - _PANELS if is_wide else size.width
        return cls(
            (2, 2 if classes["-most"] else 1),
            (min(MOST, max(1, height // _LEAST_HEIGHT)), min(MOST, max(1, width // _LEAST_WIDTH))),
            [number for number, has_room in places if has_room and is_wide and not has_images],
        )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which charts are shown, and how those on the left are laid out.

    Attributes:
        places: Numbers of the charts, in the order in which they are filled.
        rows: Rows on the left; 0: as the stylesheet has it.
        columns: Columns on the left.
        first: Number of metrics on the pages before this one.
        page: The page, from 0.
        pages: Number of pages.
    """

    places: Sequence[int]
    rows: int
    columns: int
    first: int
    page: int
    pages: int


def arranged(choice: GridChoice, room: Room, metrics: int, page: int) -> Arrangement:
    """Arrange the charts of so many metrics; a page with fewer than it has places for leaves none empty."""
    is_chosen = bool(choice.rows or choice.columns)
    rows, columns = (
        min(chosen or usual, most)
        for chosen, usual, most in zip((choice.rows, choice.columns), room.usual, room.most, strict=True)
    )
    if not is_chosen:
        rows, columns = room.usual
    places = sorted([*LEFT[: rows * columns], *room.right])
    pages = max(1, ceil(metrics / len(places)))
    page %= pages
    first = page * len(places)
    rest = max(1, metrics - first)
    if rest >= len(places) and not is_chosen:
        return Arrangement(places, 0, 0, first, page, pages)
    places = places[:rest]
    left = sum(number in LEFT for number in places)
    columns = min(columns, left)
    return Arrangement(places, ceil(left / columns), columns, first, page, pages)


class ChartGrid(Vertical):
    """The charts on the left; an arrangement also shows and hides those on the right.

    Args:
        charts: All charts, by their numbers.
    """

    def __init__(self, charts: Sequence[Chart], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._charts = charts

    def compose(self) -> ComposeResult:
        """Lay out the charts that are there from the beginning."""
        yield from (self._charts[number] for number in AT_FIRST)

    def lay_out(self, arrangement: Arrangement) -> None:
        """Show these charts in these rows and columns."""
        is_given = arrangement.columns > 0
        missing = [number for number in arrangement.places if not self._charts[number].is_attached]
        self.mount(*(self._charts[number] for number in missing))
        self.screen.set_class(is_given, "-grid")
        for number, chart in enumerate(self._charts):
            is_shown = "block" if number in arrangement.places else "none"
            chart.styles.display = is_shown if is_given else None
        self.styles.grid_size_rows = arrangement.rows if is_given else None
        self.styles.grid_size_columns = arrangement.columns if is_given else None
