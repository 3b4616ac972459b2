"""Reads `classes.toml`: the classes of a set's masks, by value or by colour.

    road = 1                              one value
    car = "2, 5-7"                        several values, and ranges of them
    tree = [128, 64, 128]                 one colour
    sky = [[0, 0, 255], [0, 0, 200]]      several colours
    ignore = 255                          what loss and metrics leave out, in the same forms

Without a class, the file says only what to ignore.
"""

from dataclasses import dataclass
from pathlib import Path

import tomli

from mptui.data.core.types import IGNORE
from mptui.data.decode.mask import MAX_CLASSES, MaskCoding
from mptui.errors import DataError
from mptui.text import clean_name

CLASS_FILE = "classes.toml"
EXAMPLE = 'a line for each class: `road = 1`, `road = "1, 5-7"`, or `road = [128, 64, 128]`'

_IGNORE = "ignore"
_HIGHEST = 65_535
_PARTS = 3


@dataclass(frozen=True, slots=True)
class ClassFile:
    """The contents of a class file: the codes of each class, in its order, and the ignored ones."""

    path: Path
    codes: dict[str, tuple[int, ...]]
    ignored: tuple[int, ...]
    by_colour: bool

    def coding(self) -> MaskCoding:
        """Return the coding of the classes; they must be there.

        Raises:
            DataError: There is only one class, or too many; or two have one value.
        """
        if len(self.codes) < 2:
            raise DataError(
                f"{self.path}: two or more classes are expected, all by value or all by colour",
                hint=f"Write {EXAMPLE}.",
            )
        if len(self.codes) > MAX_CLASSES:
            raise DataError(
                f"{self.path}: {len(self.codes):,} classes, but masks can hold {MAX_CLASSES:,}",
                hint="List fewer classes.",
            )
        names = tuple(self.codes if self.by_colour else sorted(self.codes, key=self.codes.__getitem__))
        pairs = [(code, names.index(name)) for name in names for code in self.codes[name]]
        return self.with_ignored(
            MaskCoding(tuple(map(clean_name, names)), *_columns(self.path, pairs), self.by_colour)
        )

    def with_ignored(self, coding: MaskCoding) -> MaskCoding:
        """Return a coding that ignores the ignored values, too.

        Raises:
            DataError: One of them is a class.
        """
        if not self.ignored:
            return coding
        pairs = [*zip(coding.codes, coding.indices, strict=True), *((code, IGNORE) for code in self.ignored)]
        codes, indices = _columns(self.path, pairs)
        return MaskCoding(coding.classes, codes, indices, coding.by_colour)


def read_class_file(path: Path) -> ClassFile:
    """Read a class file.

    Raises:
        DataError: It can't be read, or an entry is neither values nor colours.
    """
    try:
        table = tomli.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}", hint=f"Write {EXAMPLE}.") from error
    found = {name: _codes(path, name, value) for name, value in table.items()}
    if not found or len({by_colour for _, by_colour in found.values()}) > 1:
        raise DataError(
            f"{path}: two or more classes are expected, all by value or all by colour",
            hint=f"Write {EXAMPLE}.",
        )
    codes = {name: each for name, (each, _) in found.items()}
    ignored = codes.pop(_IGNORE, ())
    return ClassFile(path, codes, ignored, next(by_colour for _, by_colour in found.values()))


def _columns(path: Path, pairs: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = sorted(pairs)
    codes = tuple(code for code, _ in pairs)
    if len(set(codes)) < len(codes):
        raise DataError(
            f"{path}: two classes have the same value or colour", hint="Give each a different one."
        )
    return codes, tuple(index for _, index in pairs)


def _codes(path: Path, name: str, value: object) -> tuple[tuple[int, ...], bool]:
    """Return the codes of an entry, and whether they are colours.

    Raises:
        DataError: It is neither values nor colours.
    """
    colour = _colour(value)
    if colour is not None:
        return (colour,), True
    if isinstance(value, list) and value and all(isinstance(each, list) for each in value):
        colours = [_colour(each) for each in value]
        if None not in colours:
            return tuple(colour for colour in colours if colour is not None), True
    values = _values(value)
    if values is None:
        raise DataError(
            f"{path}: {name} = {value!r} is neither a value nor a colour", hint=f"Write {EXAMPLE}."
        )
    return values, False


def _colour(value: object) -> int | None:
    match value:
        case [int(red), int(green), int(blue)] if all(0 <= part <= 255 for part in (red, green, blue)):
            return (red << 16) | (green << 8) | blue
    return None


def _values(value: object) -> tuple[int, ...] | None:
    """Return values: a number, a text of numbers and ranges, or a list of such, but not of three numbers."""
    parts = value if isinstance(value, list) else [value]
    if isinstance(value, list) and (len(value) == _PARTS and all(isinstance(part, int) for part in value)):
        return None  # three numbers outside 0 to 255 are a mistaken colour
    found: list[int] = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            return None
        for text in str(part).split(","):
            first, dash, last = (piece.strip() for piece in text.partition("-"))
            if not first.isdecimal() or (dash and not last.isdecimal()):
                return None
            found += range(int(first), min(int(last or first), _HIGHEST + 1) + 1)
    return tuple(found) if found and max(found) <= _HIGHEST else None
