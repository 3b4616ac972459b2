"""Cells of a table."""

from textual.content import Content


def fit(content: Content | str, width: int, *, right: bool = False) -> Content:
    """Cut or pad a content to `width` cells of the terminal, of which wide characters take two."""
    cut = (Content(content) if isinstance(content, str) else content).truncate(width, ellipsis=True)
    missing = width - cut.cell_length
    return cut.pad_left(missing) if right else cut.pad_right(missing)
