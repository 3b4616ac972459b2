"""Refuses a column whose cells hold several labels each, of which each combination would be a class."""

from collections import Counter
from collections.abc import Iterable, Iterator

from mptui.data.formats.lists.read_table import Table
from mptui.errors import TwoReadingsError
from mptui.text import clean_name, some

_SHARED = 0.5
"""Share of the parts of joined labels that occur in other labels, too, from which parts are labels."""


def refuse_several_labels(table: Table, place: int) -> None:
    """Check that each cell of a column is one label.

    Parts of cells are labels if half of them occur in several different cells; between blanks, where names
    may have several words, only if there are fewer parts than combinations.

    Raises:
        DataError: Cells hold several, as `rust|scab`.
    """
    labels = {row[place] for row in table.rows}
    for sign, what in (("|", "|"), (";", ";"), (",", ","), (" ", "blanks")):
        joined = [label for label in labels if sign in label]
        parts = Counter(part for label in labels for part in _parts(label, sign))
        of_joined = {part for label in joined for part in _parts(label, sign)}
        shared = sum(parts[part] > 1 for part in of_joined)
        if not joined or shared < _SHARED * len(of_joined) or (sign == " " and len(labels) <= len(parts)):
            continue
        raise TwoReadingsError(
            f"{clean_name(table.path)}: its column {clean_name(table.header[place])} can hold one label or"
            " several",
            {
                f"several, with {what} between them": f"{len(parts)} labels: {_first(parts)}",
                "one": f"{len(labels)} classes: {_first(labels)}",
            },
            hint="List one class for each image: a network learns one. If each combination is a class, write"
            f" + instead of {what}.",
        )


def _parts(label: str, sign: str) -> Iterator[str]:
    yield from {part.strip() for part in label.split(sign)} - {""}


def _first(names: Iterable[str]) -> str:
    return some(sorted(names))
