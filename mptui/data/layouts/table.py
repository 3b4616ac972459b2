"""Reads a table, and finds which columns are the image, its label or mask, and its split."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mptui.data.decode import EXTENSIONS
from mptui.data.layouts.parquet import text_columns
from mptui.data.layouts.split_words import SPLIT_WORDS, TEST, TRAIN, UNLABELLED, VAL
from mptui.errors import DataError, TwoReadingsError
from mptui.io.files import read_regular
from mptui.registry.names import SampleKind
from mptui.text import clean_name, some

# Reads a table as text: a CSV or TSV file in UTF-8, or a Parquet file of plain columns
# -------------------------------------------------------------------------------------

ENDINGS = (".csv", ".tsv", ".parquet")

_MOST_BYTES = 1 << 30
_DELIMITERS = ",;\t"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text.

    Attributes:
        path: Its file.
        header: The cells of the first line.
        rows: The cells of each further line; a missing value is "".
    """

    path: str
    header: list[str]
    rows: list[list[str]]

    def name(self, row: int) -> str:
        """Return the name of a row in messages: the file, and the number of the line."""
        return f"{clean_name(os.path.basename(self.path))}, line {row + 2}"


def read_table(path: str, rows: int | None = None) -> TextTable:
    """Read a table, or its first rows.

    Args:
        path: The file.
        rows: Number of rows to read; None: all.

    Raises:
        ConfigError: A Parquet file, but pyarrow is not installed.
        DataError: The file can't be read.
    """
    if path.lower().endswith(".parquet"):
        header, lines = text_columns(path, rows)
        return TextTable(path, header, lines)
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
        first = text.partition("\n")[0]
        delimiter = "\t" if path.lower().endswith(".tsv") else max(_DELIMITERS, key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        lines = []
        for line in reader:
            if any(cell.strip() for cell in line):
                lines.append([cell.strip() for cell in line])
            if rows is not None and len(lines) > rows:
                break
    except UnicodeDecodeError as error:
        raise DataError(f"{clean_name(path)}: not in UTF-8", hint="save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(
            f"{clean_name(path)}: {getattr(error, 'strerror', None) or error}",
            hint="save it as CSV in UTF-8",
        ) from error
    if not lines:
        raise DataError(f"{clean_name(path)}: the list is empty", hint="write a line for each image")
    header = lines[0]
    for number, line in enumerate(lines):
        if len(line) > len(header):
            raise DataError(
                f"{clean_name(os.path.basename(path))}, line {number + 1}: {len(line)} values,"
                f" where the first line has {len(header)}",
                hint="put a value that has a comma between double quotes",
            )
        line += [""] * (len(header) - len(line))
    return TextTable(path, header, lines[1:])


# Finds which columns of a table are the image, its label or mask, and its split
# ------------------------------------------------------------------------------
# By the names people use; where these don't say, by the cells: files of images, or words of splits.

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
_CODED_MASKS = frozenset({"encodedpixels", "rle", "rlemask", "segmentationrle", "maskrle"})
_PASSED = ("", "unnamed: 0", "index")
"""Names of columns that number the lines."""

SPLITS: Mapping[str, str] = {
    **{word: split for word, split in SPLIT_WORDS.items() if split != UNLABELLED},
    **dict.fromkeys(("public", "private"), TEST),
}
"""Words in a column of splits, and their split."""

_OTHERWISE = {TRAIN: VAL, VAL: TRAIN, TEST: TRAIN}
_FLAG = re.compile(r"(?i)(?:is|in)[ _-]*([a-z]+)")
_TRUTHS = ({"true", "1", "1.0", "yes"}, {"false", "0", "0.0", "no"})


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of the columns in the rows of a table; None: there is no such column."""

    image: int
    label: int | None = None
    mask: int | None = None
    split: int | None = None
    one_hot: tuple[int, ...] = ()
    """Columns of 0 and 1, one a class, in place of a label."""
    split_of: Mapping[str, str] = field(default_factory=lambda: SPLITS)
    """The split that each word in its column means, in lower case."""

    @property
    def kind(self) -> SampleKind:
        """Kind of the samples."""
        if self.mask is not None:
            return SampleKind.MASK
        return SampleKind.IMAGE if self.label is None and not self.one_hot else SampleKind.CLASS


def with_header(table: TextTable) -> TextTable:
    """Return a table of two columns whose first line is a sample as one with the names of its columns."""
    first = table.header
    if len(first) != 2 or not _is_image(first[0]):
        return table
    second = "mask" if _is_image(first[1]) else "label"
    return TextTable(table.path, ["image", second], [first, *table.rows])


def find_columns(table: TextTable) -> Columns | None:
    """Find the columns of a list; None: the table is no list of images.

    Raises:
        DataError: Its columns can be read in more than one way, or hold what can't be read.
    """
    names = [_plain(name) for name in table.header]
    image = _image_column(table, names)
    if image is None:
        return None
    if coded := [name for name in names if name in _CODED_MASKS]:
        raise _refused(
            table,
            f"{coded[0]} holds masks as run lengths",
            "write each mask as a PNG file, and list it as mask",
        )
    mask = _first(names, _MASK)
    labels = [place for place, name in enumerate(names) if name in _plain_all(_LABEL) and place != image]
    if mask is None and not labels:
        mask = _only([place for place in range(len(names)) if place != image and _holds_images(table, place)])
    if mask is not None and labels:
        raise TwoReadingsError(
            f"{clean_name(table.path)}: it has a mask and a label for each image",
            {
                "images and masks": f"column {clean_name(table.header[mask])}",
                "images in classes": f"column {clean_name(table.header[labels[0]])}",
            },
            hint="remove the column that is not to be learned",
        )
    split, split_of = _split_column(table, names, {image, mask, *labels})
    if mask is not None or not table.rows:
        label = labels[0] if labels and mask is None else None
        return Columns(image, label, mask, split, split_of=split_of)
    if labels:
        return Columns(image, _one_of(table, labels), split=split, split_of=split_of)
    passed = {*_plain_all(_IMAGE), *_plain_all(_SPLIT), *_plain_all(_PASSED)}
    others = [place for place, name in enumerate(names) if name not in passed and place not in (image, split)]
    if len(others) == 1:
        return Columns(image, others[0], split=split, split_of=split_of)
    if _are_one_hot(table, others):
        return Columns(image, split=split, one_hot=tuple(others), split_of=split_of)
    if (said := _only([place for place in others if _says_label(table.header[place])])) is not None:
        return Columns(image, said, split=split, split_of=split_of)
    if others:
        raise _refused(
            table,
            f"none of its columns is called label or mask: {', '.join(map(clean_name, table.header[:12]))}",
            "rename the column of the classes to label, or that of the masks' files to mask",
        )
    return Columns(image, split=split, split_of=split_of)


def is_named_label(table: TextTable, columns: Columns) -> bool:
    """Whether the label of a list is so by the name of its column; a mask and columns of 0 and 1 are."""
    return columns.label is None or _plain(table.header[columns.label]) in _plain_all(_LABEL)


def unread(table: TextTable, columns: Columns) -> Iterator[str]:
    """Yield the names of the columns that are not read, without those that number the lines."""
    read = {columns.image, columns.label, columns.mask, columns.split, *columns.one_hot}
    for place, name in enumerate(table.header):
        if place not in read and _plain(name) not in _plain_all(_PASSED):
            yield name


def _plain(name: str) -> str:
    """Return the name of a column without capitals and what is between its words."""
    return re.sub(r"[ _.-]+", "", name.lower())


def _plain_all(names: Sequence[str]) -> list[str]:
    return [_plain(name) for name in names]


def _first(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((names.index(name) for name in _plain_all(known) if name in names), None)


def _only(places: Sequence[int]) -> int | None:
    return places[0] if len(places) == 1 else None


def _image_column(table: TextTable, names: Sequence[str]) -> int | None:
    """Return the column of the images: that of a usual name, unless another alone holds files of images."""
    named = _first(names, _IMAGE)
    if named is not None and _holds_images(table, named):
        return named
    masks = _plain_all(_MASK)
    holds = [place for place, name in enumerate(names) if name not in masks and _holds_images(table, place)]
    said = [place for place in holds if not re.search(r"mask|seg|annot|label", names[place])]
    return named if (found := _only(said)) is None else found


def _holds_images(table: TextTable, place: int) -> bool:
    cells = [row[place] for row in table.rows if row[place]]
    return bool(cells) and all(map(_is_image, cells))


def _split_column(
    table: TextTable, names: Sequence[str], others: set[int | None]
) -> tuple[int | None, Mapping[str, str]]:
    """Return the column of the split, and what its words mean.

    A column of another name is one if its words are of several splits, or if it says with true and false
    whether an image is of a split, as `is_valid`.
    """
    named = _first(names, _SPLIT)
    if named is not None:
        return named, SPLITS
    for place, name in enumerate(table.header):
        if place in others:
            continue
        words = {row[place].lower() for row in table.rows}
        if len({SPLITS.get(word, "") for word in words} - {""}) > 1 and words <= {*SPLITS}:
            return place, SPLITS
        if (flag := _FLAG.match(name)) is not None and words <= _TRUTHS[0] | _TRUTHS[1]:
            split = SPLITS.get(flag[1].lower(), "")
            if split:
                return place, _flagged(split)
    return None, SPLITS


def _flagged(split: str) -> Mapping[str, str]:
    return {**dict.fromkeys(_TRUTHS[0], split), **dict.fromkeys(_TRUTHS[1], _OTHERWISE[split])}


def _says_label(name: str) -> bool:
    return any(word in _LABEL for word in re.findall(r"[a-z]+", name.lower()))


def _one_of(table: TextTable, labels: list[int]) -> int:
    """Return the column of labels; of two that say the same, as a number and as a word, that of words.

    Raises:
        DataError: They do not say the same.
    """
    first, *rest = labels
    for other in rest:
        pairs = {(row[first], row[other]) for row in table.rows}
        if len(pairs) != len({a for a, _ in pairs}) or len(pairs) != len({b for _, b in pairs}):
            counts = [len({row[place] for row in table.rows}) for place in (first, other)]
            raise TwoReadingsError(
                f"{clean_name(table.path)}: two of its columns can be the label",
                {
                    clean_name(table.header[first]): f"{counts[0]} classes",
                    clean_name(table.header[other]): f"{counts[1]} classes",
                },
                hint="remove one of them",
            )
        if all(_is_number(row[first]) for row in table.rows):
            first = other
    return first


def _are_one_hot(table: TextTable, places: Sequence[int]) -> bool:
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


def _refused(table: TextTable, what: str, hint: str) -> DataError:
    return DataError(f"{clean_name(table.path)}: {what}", hint=hint)


# Refuses a column whose cells hold several labels each, of which each combination would be a class
# -------------------------------------------------------------------------------------------------

_SHARED = 0.5
"""Share of the parts of joined labels that occur in other labels, too, from which parts are labels."""


def refuse_several_labels(table: TextTable, place: int) -> None:
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
        are_names = sign == " " and len(labels) <= len(parts)  # of several words
        are_labels = joined and shared >= _SHARED * len(of_joined)
        if are_names or not are_labels:
            continue
        raise TwoReadingsError(
            f"{clean_name(table.path)}: its column {clean_name(table.header[place])} can hold one label or"
            " several",
            {
                f"several, with {what} between them": f"{len(parts)} labels: {_first_names(parts)}",
                "one": f"{len(labels)} classes: {_first_names(labels)}",
            },
            hint="list one class for each image: a network learns one. If each combination is a class, write"
            f" + instead of {what}",
        )


def _parts(label: str, sign: str) -> Iterator[str]:
    yield from {part.strip() for part in label.split(sign)} - {""}


def _first_names(names: Iterable[str]) -> str:
    return some(sorted(names))
