"""Tables of whole cells: what does not fit the terminal is left out column by column, never cut.

In a pipe or a file there is no width: all columns are there.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column by its heading and cells.

    Args:
        heading: What stands above it.
        cells: Its text in each row.
        right: Whether it is aligned to the right.
        leave: When it is left out of a table that is too wide: the largest first, 0 never.
    """

    heading: str
    cells: Sequence[str]
    right: bool = False
    leave: int = 0

    @property
    def width(self) -> int:
        """Of the widest cell, in cells of the terminal."""
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.heading, *self.cells))


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is; None: it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(columns: Sequence[TableColumn], width: int | None) -> list[TableColumn]:
    """The columns that `width` cells have room for, and those that are never left out."""
    kept = list(columns)
    while width is not None and sum(c.width + GAP for c in kept) - GAP > width:
        last = max(kept, key=lambda column: column.leave, default=None)
        if last is None or last.leave == 0:
            break
        kept.remove(last)
    return kept


def lines(columns: Sequence[TableColumn]) -> list[str]:
    """The table as lines, the headings first, without spaces at their ends."""
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
