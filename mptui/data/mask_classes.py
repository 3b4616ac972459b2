"""Determines the coding of a set's masks from `classes.toml` beside them, or from all their values."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mptui.data.core.types import IGNORE
from mptui.data.decode.mask import MAX_CLASSES, MAX_CODES, MaskCoding, MaskSurvey
from mptui.data.formats.masks.class_file import CLASS_FILE, EXAMPLE, read_class_file
from mptui.data.formats.masks.instance_numbers import instance_notes
from mptui.data.formats.masks.value_clusters import find_clusters, look_smoothed
from mptui.errors import DataError, TwoReadingsError
from mptui.text import ranges

BINARY = ("background", "foreground")

_WHITE = 0xFFFFFF
_VOID = 255
_VOID_COLOUR = 0xE0E0C0
"""The colour of VOC's borders, which are no class."""


@dataclass(frozen=True, slots=True)
class FoundCoding:
    """The coding of a set's masks; as sentences, what it made uniform, and what may be meant otherwise."""

    coding: MaskCoding
    cleaned: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_coding(
    surveys: Sequence[MaskSurvey], ignore_index: int | None, class_file: Path | None, void: int | None = None
) -> FoundCoding:
    """Find the coding that fits all masks of a set.

    Args:
        surveys: The survey of each mask.
        ignore_index: The value of ignored pixels, if any.
        class_file: `classes.toml`, if the set has one.
        void: The value that is no class in sets of this layout, if it has one.

    Raises:
        DataError: `class_file` is invalid, or the meaning of the masks' values is ambiguous.
    """
    file = None if class_file is None else read_class_file(class_file)
    if file is not None and file.codes:
        found = FoundCoding(file.coding())
    elif file is not None:
        rest = _without(surveys, file.ignored, by_colour=file.by_colour)
        coding = _from_surveys(rest, ignore_index)
        if coding.coding.by_colour != file.by_colour:
            raise DataError(
                f"{file.path}: `ignore` is a {'colour' if file.by_colour else 'value'}, but the masks have"
                f" {'values' if file.by_colour else 'colours'}",
                hint="Write it as the masks have it.",
            )
        found = replace(coding, coding=file.with_ignored(coding.coding))
    elif void is not None and ignore_index is None and _is_void(void, surveys):
        known = _from_surveys(_without(surveys, (void,), by_colour=False), void)
        told = f"mask value {void} is ignored: it is no class in this layout"
        return replace(known, coding=_with_ignored(known.coding, void), cleaned=(*known.cleaned, told))
    else:
        found = _from_surveys(surveys, ignore_index)
    if ignore_index is None:
        return found
    if found.coding.by_colour:
        raise DataError(
            f"data.ignore_index = {ignore_index} is a value, but the masks are coloured",
            hint=f"Remove data.ignore_index; write `ignore = [R, G, B]` into {CLASS_FILE} beside the data.",
        )
    return replace(found, coding=_with_ignored(found.coding, ignore_index))


def _is_void(void: int, surveys: Sequence[MaskSurvey]) -> bool:
    """Whether a value is no class: it occurs, and there are classes without it, not 0 and 255 alone."""
    values = {value for survey in surveys for value in survey.codes}
    return void in values and len(values) > 2


def _without(surveys: Sequence[MaskSurvey], codes: Sequence[int], *, by_colour: bool) -> list[MaskSurvey]:
    """Return surveys without the ignored codes."""
    ignored, kept = set(codes), []
    for survey in surveys:
        own = colour_codes(survey) if by_colour else survey.codes
        places = [place for place, code in enumerate(own) if code not in ignored]
        codes, counts, colours = (
            tuple(column[place] for place in places) if column else ()
            for column in (survey.codes, survey.counts, survey.colours)
        )
        even, between = (
            tuple(column[place] for place in places) if column else ()
            for column in (survey.even, survey.between)
        )
        kept.append(replace(survey, codes=codes, counts=counts, colours=colours, even=even, between=between))
    return kept


def _from_surveys(surveys: Sequence[MaskSurvey], ignore_index: int | None) -> FoundCoding:
    by_colour = any(survey.kind == "colour" for survey in surveys) or not _palettes_agree(surveys)
    if by_colour:
        _refuse_lossy_colours(surveys)
        return FoundCoding(_of_colours(sorted({code for survey in surveys for code in colour_codes(survey)})))
    values = sorted({value for survey in surveys for value in survey.codes} - {ignore_index})
    all_grey = all(survey.kind == "grey" for survey in surveys) and values and values[-1] <= _VOID
    if all_grey and len(values) > 2 and ignore_index is None:
        _refuse_two_codings(surveys, values)
        if (clusters := find_clusters(surveys)) is not None:
            names = (
                BINARY if len(clusters.values) == 2 else tuple(f"class_{each}" for each in clusters.values)
            )
            coding = MaskCoding(names, tuple(range(256)), clusters.of_value)
            return FoundCoding(coding, (clusters.described(names, values),))
    return FoundCoding(_of_values(values, surveys), notes=tuple(instance_notes(surveys, values)))


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


def unknown_code(survey: MaskSurvey, coding: MaskCoding, known: frozenset[int]) -> str | None:
    """Describe the first code of a mask that is not `known`, the coding's codes; None if all are."""
    codes = colour_codes(survey) if coding.by_colour else survey.codes
    unknown = sorted(set(codes) - known)
    if not unknown:
        return None
    return f"colour #{unknown[0]:06x}" if coding.by_colour else f"value {unknown[0]}"


def _of_values(values: list[int], surveys: Sequence[MaskSurvey]) -> MaskCoding:
    if len(values) < 2:
        raise DataError(
            f"the masks hold only one value besides ignored ones: {values}",
            hint="Check that the masks are the right files, and data.ignore_index; if their transparency has"
            " the classes, save it alone as a grey image.",
        )
    if set(values) <= {0, 1} or values == [0, _VOID]:
        return MaskCoding(BINARY, (0, 1, _VOID), (0, 1, 1))
    if any(survey.lossy for survey in surveys) and all(value < 64 or value >= 192 for value in values):
        return MaskCoding(BINARY, tuple(range(256)), (0,) * 128 + (1,) * 128)
    _refuse_soft_edges(values, surveys)
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
            hint=f"Check the masks, or list the classes in {CLASS_FILE} beside the folders: {EXAMPLE}.",
        )
    if _VOID_COLOUR in colours:
        raise TwoReadingsError(
            f"the masks hold the colour #{_VOID_COLOUR:06x}",
            {
                "void": f"VOC's borders, which are no class, and {len(colours) - 1} classes",
                "a class": f"{len(colours)} classes",
            },
            hint=f"Write `ignore = [224, 224, 192]` into {CLASS_FILE} beside the data, or name each class.",
        )
    classes = BINARY if colours == [0, _WHITE] else tuple(f"#{colour:06x}" for colour in colours)
    return MaskCoding(classes, tuple(colours), tuple(range(len(colours))), by_colour=True)


def _with_ignored(coding: MaskCoding, ignore_index: int) -> MaskCoding:
    """Map the value `ignore_index` to `IGNORE`, even if it had a class."""
    index_of = dict(zip(coding.codes, coding.indices, strict=True)) | {ignore_index: IGNORE}
    codes = tuple(sorted(index_of))
    return MaskCoding(coding.classes, codes, tuple(index_of[code] for code in codes))


def _refuse_soft_edges(values: list[int], surveys: Sequence[MaskSurvey]) -> None:
    many = values[-1] == _VOID and len(values) > 64
    grey = values[-1] <= _VOID and all(survey.kind == "grey" for survey in surveys)
    if many or (grey and look_smoothed(surveys)):
        raise TwoReadingsError(
            f"the masks hold {len(values)} grey values up to {values[-1]}: soft edges, or pictures",
            {
                "two classes": "below and above a value, as 0-127 and 128-255",
                f"{len(values)} classes": ", ".join(ranges(values)[:8]),
            },
            hint="Save the masks without smoothing, each pixel as the number of its class, or write"
            f' {CLASS_FILE} beside the folders: `background = "0-127"` and `foreground = "128-255"`.',
        )


def _refuse_unexplained_void(values: list[int]) -> None:
    """Refuse 255 far above the other values, which often marks pixels to leave out."""
    others = values[:-1]
    gaps = [after - before for before, after in pairwise(others)]
    if values[-1] == _VOID and len(others) > 1 and _VOID - others[-1] > 2 * max(gaps):
        shown = (
            f"the classes 0 to {others[-1]}"
            if _dense(others)
            else f"the classes {', '.join(ranges(others)[:8])}"
        )
        raise TwoReadingsError(
            f"the masks hold {shown} and the value {_VOID}, which often marks pixels to leave out",
            {"void": f"{_VOID} is no class: {len(others)} classes", "a class": f"{len(values)} classes"},
            hint="Add --set data.ignore_index=255 to leave them out"
            f" (or name each value in {CLASS_FILE} beside the folders, if 255 is a class).",
        )


def _refuse_two_codings(surveys: Sequence[MaskSurvey], values: list[int]) -> None:
    """Refuse a set where some masks are of 0 and 1, and others of 0 and 255."""
    small = sum(1 in survey.codes and _VOID not in survey.codes for survey in surveys)
    large = sum(_VOID in survey.codes and 1 not in survey.codes for survey in surveys)
    both = sum(1 in survey.codes and _VOID in survey.codes for survey in surveys)
    if values == [0, 1, _VOID] and small and large and not both:
        raise TwoReadingsError(
            f"{small} masks are of the values 0 and 1, {large} of 0 and {_VOID}",
            {
                "two codings of one class": f"1 and {_VOID} are the foreground",
                "one coding": f"{_VOID} marks pixels to leave out",
            },
            hint=f'Write {CLASS_FILE} beside the folders: `background = 0` and `foreground = "1, {_VOID}"`,'
            f" or with `foreground = 1` and `ignore = {_VOID}`.",
        )


def _refuse_lossy_colours(surveys: Sequence[MaskSurvey]) -> None:
    if any(survey.lossy and survey.kind == "colour" for survey in surveys):
        count = len({code for survey in surveys for code in colour_codes(survey)})
        raise DataError(
            f"the masks are coloured and saved with loss: {count} colours, most of them no class",
            hint="Save the masks as PNG.",
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
