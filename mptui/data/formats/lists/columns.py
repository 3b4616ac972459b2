"""Finds which columns of a table are the image, its label or mask, and its split, by the names people use."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from mptui.data.decode.image import EXTENSIONS
from mptui.data.formats.lists.read_table import Table
from mptui.errors import DataError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name

LAYOUT = "DATA.csv, .tsv or .parquet with the columns image, and label or mask, and split if there is one"

_IMAGE = (
    *("image", "images", "image_path", "img", "img_path", "image_file", "image_filename", "image_name"),
    *("filepath", "file_path", "filename", "file_name", "file", "path", "fname", "photo"),
    *("picture", "image_id", "img_id", "imageid", "id_code", "id", "name"),
)
_LABEL = (
    *("label", "labels", "class", "class_name", "classname", "label_name", "category", "target"),
    *("species", "breed", "diagnosis", "y", "class_id", "label_id", "category_id"),
)
_MASK = (
    "mask",
    "masks",
    "mask_path",
    "mask_file",
    "mask_filename",
    "mask_name",
    "segmentation",
    "annotation",
)
_SPLIT = ("split", "subset", "set", "partition", "phase", "usage")
_CODED_MASKS = frozenset({"encodedpixels", "rle", "rle_mask", "segmentation_rle", "mask_rle"})


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of the columns in the rows of a table; None: there is no such column."""

    image: int
    label: int | None = None
    mask: int | None = None
    split: int | None = None
    one_hot: tuple[int, ...] = ()
    """Columns of 0 and 1, one a class, in place of a label."""

    @property
    def kind(self) -> SampleKind:
        """Kind of the samples."""
        if self.mask is not None:
            return SampleKind.MASK
        return SampleKind.IMAGE if self.label is None and not self.one_hot else SampleKind.CLASS


def with_header(table: Table) -> Table:
    """Return a table of two columns whose first line is a sample as one with the names of its columns."""
    first = table.header
    if len(first) != 2 or not _is_image(first[0]):
        return table
    second = "mask" if _is_image(first[1]) else "label"
    return Table(table.path, ["image", second], [first, *table.rows])


def find_columns(table: Table) -> Columns | None:
    """Find the columns of a list; None: the table is no list of images.

    Raises:
        DataError: Its columns can be read in more than one way, or hold what can't be read.
    """
    names = _plain_names(table)
    image = _first(names, _IMAGE)
    if image is None:
        return None
    if coded := [name for name in names if name in _CODED_MASKS]:
        raise _refused(
            table,
            f"{coded[0]} holds masks as run lengths",
            "Write each mask as a PNG file, and list it as mask.",
        )
    split, mask = _first(names, _SPLIT), _first(names, _MASK)
    labels = [place for place, name in enumerate(names) if name in _LABEL]
    if mask is not None and labels:
        raise _refused(
            table,
            f"it has a mask and a label for each image: {table.header[mask]} and {table.header[labels[0]]}",
            "Remove the column that is not to be learned.",
        )
    if mask is not None or not table.rows:
        return Columns(image, labels[0] if labels and mask is None else None, mask, split)
    passed = {*_IMAGE, *_SPLIT, "", "unnamed:_0", "index"}
    others = [place for place, name in enumerate(names) if name not in passed]
    if labels:
        return Columns(image, _one_of(table, labels), split=split)
    if len(others) == 1:
        return Columns(image, others[0], split=split)
    if _are_one_hot(table, others):
        return Columns(image, split=split, one_hot=tuple(others))
    if others:
        raise _refused(
            table,
            f"none of its columns is called label or mask: {', '.join(map(clean_name, table.header[:12]))}",
            "Rename the column of the classes to label, or that of the masks' files to mask.",
        )
    return Columns(image, split=split)


def is_named_label(table: Table, columns: Columns) -> bool:
    """Whether the label of a list is so by the name of its column; a mask and columns of 0 and 1 are."""
    return columns.label is None or _plain_names(table)[columns.label] in _LABEL


def _plain_names(table: Table) -> list[str]:
    return [name.strip().lower().replace(" ", "_").replace("-", "_") for name in table.header]


def _first(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _one_of(table: Table, labels: list[int]) -> int:
    """Return the column of labels; of two that say the same, as a number and as a word, that of words.

    Raises:
        DataError: They do not say the same.
    """
    first, *rest = labels
    for other in rest:
        pairs = {(row[first], row[other]) for row in table.rows}
        if len(pairs) != len({a for a, _ in pairs}) or len(pairs) != len({b for _, b in pairs}):
            counts = [len({row[place] for row in table.rows}) for place in (first, other)]
            raise _refused(
                table,
                "two of its columns can be the label:\n"
                f"  {clean_name(table.header[first])}: {counts[0]} classes\n"
                f"  {clean_name(table.header[other])}: {counts[1]} classes",
                "Remove one of them.",
            )
        if all(_is_number(row[first]) for row in table.rows):
            first = other
    return first


def _are_one_hot(table: Table, places: Sequence[int]) -> bool:
    if len(places) < 2:
        return False
    for row in table.rows:
        cells = [row[place] for place in places]
        if sum(cell in {"1", "1.0"} for cell in cells) != 1 or not all(_is_number(cell) for cell in cells):
            return False
        if sum(cell in {"0", "0.0"} for cell in cells) != len(cells) - 1:
            return False
    return True


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_image(cell: str) -> bool:
    return os.path.splitext(cell)[1].lower() in EXTENSIONS


def _refused(table: Table, what: str, hint: str) -> DataError:
    return DataError(f"{clean_name(table.path)}: {what}", hint=hint)
