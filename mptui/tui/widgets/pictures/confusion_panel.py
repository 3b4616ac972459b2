"""The panel of the confusion matrix: in full for few classes, else the pairs that are confused most."""

from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content

from mptui import format as fmt
from mptui.runs.pictures.picture_files import PictureRecord
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.widgets.panel import Lines, Panel

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
