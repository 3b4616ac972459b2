"""Determines the coding of a set's masks from `classes.toml` beside them, or from their values."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tomli

from mptui.data.core.types import IGNORE
from mptui.data.decode.mask import MAX_CLASSES, MAX_CODES, MaskCoding, MaskSurvey
from mptui.errors import DataError
from mptui.text import clean_name

CLASS_FILE = "classes.toml"
BINARY = ("background", "foreground")

_WHITE = 0xFFFFFF
_VOID = 255
_EXAMPLE = "one line per class: `road = 1`, or `road = [128, 64, 128]`"


def find_coding(
    surveys: Sequence[MaskSurvey], ignore_index: int | None, class_file: Path | None
) -> MaskCoding:
    """Find the coding that fits all masks of a set.

    Args:
        surveys: The survey of each mask.
        ignore_index: The value of ignored pixels, if any.
        class_file: `classes.toml`, if the set has one.

    Raises:
        DataError: `class_file` is invalid, or the meaning of the masks' values is ambiguous.
    """
    coding = _from_file(class_file) if class_file is not None else _from_surveys(surveys, ignore_index)
    if ignore_index is None:
        return coding
    if coding.by_colour:
        raise DataError(
            f"data.ignore_index = {ignore_index} is a value, but the masks are coloured",
            hint="Remove data.ignore_index.",
        )
    return _with_ignored(coding, ignore_index)


def _from_surveys(surveys: Sequence[MaskSurvey], ignore_index: int | None) -> MaskCoding:
    by_colour = any(survey.kind == "colour" for survey in surveys) or not _palettes_agree(surveys)
    if by_colour:
        return _of_colours(sorted({colour for survey in surveys for colour in colour_codes(survey)}))
    values = {value for survey in surveys for value in survey.codes} - {ignore_index}
    return _of_values(sorted(values), lossy=any(survey.lossy for survey in surveys))


def colour_codes(survey: MaskSurvey) -> tuple[int, ...]:
    """Return the codes of a mask as colours, 0xRRGGBB, in the order of its counts."""
    if survey.kind == "grey":
        return tuple(min(value, 255) * 0x010101 for value in survey.codes)
    return survey.colours if survey.kind == "palette" else survey.codes


def class_pixels(surveys: Sequence[MaskSurvey], coding: MaskCoding) -> tuple[tuple[int, ...], bool]:
    """Return the number of pixels of each class in some masks, and whether any pixel is ignored."""
    index_of = dict(zip(coding.codes, coding.indices, strict=True))
    pixels: Counter[int] = Counter()
    for survey in surveys:
        codes = colour_codes(survey) if coding.by_colour else survey.codes
        for code, count in zip(codes, survey.counts, strict=True):
            pixels[index_of[code]] += count
    return tuple(pixels[index] for index in range(len(coding.classes))), pixels[IGNORE] > 0


def unknown_code(survey: MaskSurvey, coding: MaskCoding) -> str | None:
    """Describe the first code of a mask without a class; None if all have one."""
    codes = colour_codes(survey) if coding.by_colour else survey.codes
    unknown = sorted(set(codes) - set(coding.codes))
    if not unknown:
        return None
    return f"colour #{unknown[0]:06x}" if coding.by_colour else f"value {unknown[0]}"


def _of_values(values: list[int], lossy: bool) -> MaskCoding:
    if len(values) < 2:
        raise DataError(
            f"the masks hold only one value besides ignored ones: {values}",
            hint="Check that the masks are the right files, and data.ignore_index.",
        )
    if set(values) <= {0, 1} or values == [0, _VOID]:
        return MaskCoding(BINARY, (0, 1, _VOID), (0, 1, 1))
    if lossy and all(value < 64 or value >= 192 for value in values):
        return MaskCoding(BINARY, tuple(range(256)), (0,) * 128 + (1,) * 128)
    _refuse_soft_edges(values)
    _refuse_unexplained_void(values)
    if _dense(values):
        values = list(range(values[-1] + 1))
    if len(values) > MAX_CLASSES:
        raise DataError(
            f"the masks hold {len(values):,} values: instance numbers, or pictures, not classes",
            hint="Save each pixel as the number of its class.",
        )
    classes = tuple(f"class_{value}" for value in values)
    return MaskCoding(classes, tuple(values), tuple(range(len(values))))


def _of_colours(colours: list[int]) -> MaskCoding:
    if not 2 <= len(colours) <= MAX_CODES:
        raise DataError(
            f"the masks hold {len(colours)} colours, where 2 to {MAX_CODES} are expected",
            hint=f"Check the masks, or list the classes in {CLASS_FILE} beside the folders: {_EXAMPLE}.",
        )
    classes = BINARY if colours == [0, _WHITE] else tuple(f"#{colour:06x}" for colour in colours)
    return MaskCoding(classes, tuple(colours), tuple(range(len(colours))), by_colour=True)


def _with_ignored(coding: MaskCoding, ignore_index: int) -> MaskCoding:
    """Map the value `ignore_index` to `IGNORE`, even if it had a class."""
    index_of = dict(zip(coding.codes, coding.indices, strict=True)) | {ignore_index: IGNORE}
    codes = tuple(sorted(index_of))
    return MaskCoding(coding.classes, codes, tuple(index_of[code] for code in codes))


def _refuse_soft_edges(values: list[int]) -> None:
    if values[-1] == _VOID and len(values) > 64:
        raise DataError(
            f"the masks hold {len(values)} grey values up to {_VOID}: soft edges, or pictures, not classes",
            hint="Save the masks without smoothing, each pixel as the number of its class.",
        )


def _refuse_unexplained_void(values: list[int]) -> None:
    if values[-1] == _VOID and _dense(values[:-1]):
        raise DataError(
            f"the masks hold the classes 0 to {values[-2]} and the value {_VOID},"
            " which often marks pixels to leave out",
            hint="Add --set data.ignore_index=255 to leave them out"
            f" (or name each value in {CLASS_FILE} beside the folders, if 255 is a class).",
        )


def _dense(values: list[int]) -> bool:
    """Whether values look like class numbers: at least half of those from 0 to the highest occur."""
    return 2 * len(values) >= values[-1] + 1


def _palettes_agree(surveys: Sequence[MaskSurvey]) -> bool:
    """Whether each palette index has one colour in all masks; otherwise colours are the codes."""
    colour_of: dict[int, int] = {}
    return all(
        colour_of.setdefault(code, colour) == colour
        for survey in surveys
        if survey.kind == "palette"
        for code, colour in zip(survey.codes, survey.colours, strict=True)
    )


def _from_file(path: Path) -> MaskCoding:
    try:
        table = tomli.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}", hint=f"Write {_EXAMPLE}.") from error
    codes = {name: _code(path, name, value) for name, value in table.items()}
    by_colour = isinstance(next(iter(table.values()), 0), list)
    if len({isinstance(value, list) for value in table.values()}) != 1 or len(codes) < 2:
        raise DataError(
            f"{path}: two or more classes are expected, all by value or all by colour",
            hint=f"Write {_EXAMPLE}.",
        )
    if len(codes) > MAX_CLASSES:
        raise DataError(
            f"{path}: {len(codes):,} classes, but masks can hold {MAX_CLASSES:,}", hint="List fewer classes."
        )
    names = tuple(codes if by_colour else sorted(codes, key=codes.__getitem__))
    code_order = sorted(names, key=codes.__getitem__)
    if len(set(codes.values())) < len(codes):
        raise DataError(
            f"{path}: two classes have the same value or colour", hint="Give each a different one."
        )
    return MaskCoding(
        tuple(clean_name(name) for name in names),
        tuple(codes[name] for name in code_order),
        tuple(names.index(name) for name in code_order),
        by_colour,
    )


def _code(path: Path, name: str, value: object) -> int:
    match value:
        case bool():
            pass
        case int() if 0 <= value <= 65_535:
            return value
        case [int(red), int(green), int(blue)] if all(0 <= part <= 255 for part in (red, green, blue)):
            return (red << 16) | (green << 8) | blue
    raise DataError(f"{path}: {name} = {value!r} is neither a value nor a colour", hint=f"Write {_EXAMPLE}.")
