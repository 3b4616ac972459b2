"""Tables that fit the terminal by omitting whole columns; cells are never cut.

In a pipe or a file all columns are printed.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mptui import format as fmt

GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Args:
        heading: The text above it.
        cells: The text of each row.
        right: Whether it is aligned to the right.
        leave: Order in which columns are omitted from a table that is too wide: largest first, 0 never.
    """

    heading: str
    cells: Sequence[str]
    right: bool = False
    leave: int = 0

    @property
    def width(self) -> int:
        """Width of the widest cell, in terminal cells."""
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.heading, *self.cells))


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout in cells; None if it isn't a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(columns: Sequence[TableColumn], width: int | None) -> list[TableColumn]:
    """Return the columns that fit into `width` cells, and those that are never omitted; None: all."""
    return list(columns) if width is None else fmt.fitting(columns, width, GAP)


def lines(columns: Sequence[TableColumn]) -> list[str]:
    """Format the table as lines, headings first, without trailing spaces."""
    padded = [_padded(column) for column in columns]
    return [(" " * GAP).join(row).rstrip() for row in zip(*padded, strict=True)]


def _padded(column: TableColumn) -> list[str]:
    from rich.cells import cell_len

    width = column.width
    texts = []
    for text in (column.heading, *column.cells):
        space = " " * (width - cell_len(text))
        texts.append(space + text if column.right else text + space)
    return texts
