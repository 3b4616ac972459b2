"""Determines how the masks of a set are coded: by values or colours, with loss, or turned."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from mptui.data.masks import (
    AS_SHOWN,
    AS_STORED,
    CLASS_FILE,
    EITHER,
    EXAMPLE,
    MAX_CLASSES,
    MAX_CODES,
    MaskCoding,
    MaskSurvey,
    read_class_file,
)
from mptui.data.types import IGNORE
from mptui.errors import DataError, TwoReadingsError
from mptui.text import ranges

# Recognizes masks whose values are the numbers of objects, not classes
# ---------------------------------------------------------------------

_HIGHEST = 255
_FEWEST_VALUES = 10
_IN_A_ROW, _OTHER_COUNTS = 0.8, 0.8
_COMPACT = 0.9
"""Share of the values of masks that are one compact region, from which they may be objects."""
_A_FEW, _MANY = 3, 8
"""Objects a mask: some classes are compact, too, but seldom many in one picture."""
_MANY_VALUES = 32
_SEVERAL, _ALONE = 4, 0.9
"""Masks, and the share of values that are in one of them alone, from which they may be objects."""


def instance_notes(surveys: Sequence[MaskSurvey], values: Sequence[int]) -> Iterator[str]:
    """Yield what speaks for numbers of objects, if it is not certain.

    Args:
        surveys: The survey of each mask.
        values: All values that count, ascending.

    Raises:
        DataError: It is: values go from 1 to another highest in each mask; or they are many, and each is one
            compact region.
    """
    marked = [[code for code in survey.codes if code > 0] for survey in surveys]
    marked = [codes for codes in marked if codes]
    numbers = {code for codes in marked for code in codes} & {*values}
    if len(marked) < 2 or max(map(max, marked)) < _FEWEST_VALUES:
        return
    highest = max(_HIGHEST, *numbers)
    join = f'`background = 0` and `object = "1-{highest}"` in {CLASS_FILE} beside the folders'
    if _are_in_a_row(marked):
        what = f"each mask holds the values 1 to another highest, up to {max(map(max, marked))}"
        raise _refused(what, values, join)
    counts = Counter(code for codes in marked for code in codes)
    once = sum(counts[code] == 1 for code in numbers)
    are_enough = len(marked) >= _SEVERAL and len(numbers) >= _FEWEST_VALUES
    if are_enough and once >= _ALONE * len(numbers):
        what = f"{once} of {len(numbers)} values above 0 are in one mask each"
        yield f"{what}: if these are numbers of objects, {join} joins them to one class"
    looked_at, compact = (sum(survey.regions[place] for survey in surveys) for place in (0, 1))
    each = looked_at / len(marked)
    may_be_objects = each >= _A_FEW and compact >= _COMPACT * looked_at
    if len(numbers) < _FEWEST_VALUES or not may_be_objects:
        return
    what = f"the masks hold {len(numbers)} values above 0, and each is one compact region in its mask"
    if len(numbers) >= _MANY_VALUES and each >= _MANY:
        raise _refused(what, values, join)
    yield f"{what}: if these are numbers of objects, {join} joins them to one class"


def _are_in_a_row(marked: Sequence[Sequence[int]]) -> bool:
    """Whether the values of each mask go from 1 up to another number."""
    tops = [max(codes) for codes in marked]
    return (
        max(tops) >= _FEWEST_VALUES
        and all(len(codes) >= _IN_A_ROW * top for codes, top in zip(marked, tops, strict=True))
        and min(tops) <= _OTHER_COUNTS * max(tops)
    )


def _refused(what: str, values: Sequence[int], join: str) -> TwoReadingsError:
    return TwoReadingsError(
        what,
        {"objects": "numbers of instances, of one class", "classes": f"{len(values)} classes"},
        hint=f"write {join} to join all objects to one class; name each value there if they are classes",
    )


# Determines the coding of a set's masks from `classes.toml` beside them, or from all their values
# ------------------------------------------------------------------------------------------------

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
    void = None if ignore_index is not None else void
    if file is not None and file.codes:
        found = FoundCoding(file.coding())
    elif file is not None:
        rest = _without(surveys, file.ignored, by_colour=file.by_colour)
        coding = _from_surveys(rest, ignore_index)
        if coding.coding.by_colour != file.by_colour:
            raise DataError(
                f"{file.path}: `ignore` is a {'colour' if file.by_colour else 'value'}, but the masks have"
                f" {'values' if file.by_colour else 'colours'}",
                hint="write it as the masks have it",
            )
        found = replace(coding, coding=file.with_ignored(coding.coding))
    elif void is not None and _is_void(void, surveys):
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
            hint=f"remove data.ignore_index; write `ignore = [R, G, B]` into {CLASS_FILE} beside the data",
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
    are_grey = len(values) > 2 and values[-1] <= _VOID and all(survey.kind == "grey" for survey in surveys)
    if are_grey and ignore_index is None:
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
            hint="check that the masks are the right files, and data.ignore_index; if their transparency has"
            " the classes, save it alone as a grey image",
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
            hint="save each pixel as the number of its class",
        )
    classes = tuple(f"class_{value}" for value in values)
    return MaskCoding(classes, tuple(values), tuple(range(len(values))))


def _of_colours(colours: list[int]) -> MaskCoding:
    if not 2 <= len(colours) <= MAX_CODES:
        raise DataError(
            f"the masks hold {len(colours)} colours, where 2 to {MAX_CODES} are expected",
            hint=f"check the masks, or list the classes in {CLASS_FILE} beside the folders: {EXAMPLE}",
        )
    if _VOID_COLOUR in colours:
        raise TwoReadingsError(
            f"the masks hold the colour #{_VOID_COLOUR:06x}",
            {
                "void": f"VOC's borders, which are no class, and {len(colours) - 1} classes",
                "a class": f"{len(colours)} classes",
            },
            hint=f"write `ignore = [224, 224, 192]` into {CLASS_FILE} beside the data, or name each class",
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
    are_shades = many or (grey and look_smoothed(surveys))
    if are_shades:
        raise TwoReadingsError(
            f"the masks hold {len(values)} grey values up to {values[-1]}: soft edges, or pictures",
            {
                "two classes": "below and above a value, as 0-127 and 128-255",
                f"{len(values)} classes": ", ".join(ranges(values)[:8]),
            },
            hint="save the masks without smoothing, each pixel as the number of its class, or write"
            f' {CLASS_FILE} beside the folders: `background = "0-127"` and `foreground = "128-255"`',
        )


def _refuse_unexplained_void(values: list[int]) -> None:
    """Refuse 255 far above the other values, which often marks pixels to leave out."""
    others = values[:-1]
    gaps = [after - before for before, after in pairwise(others)]
    is_far = len(others) > 1 and _VOID - others[-1] > 2 * max(gaps)
    if values[-1] == _VOID and is_far:
        shown = (
            f"the classes 0 to {others[-1]}"
            if _dense(others)
            else f"the classes {', '.join(ranges(others)[:8])}"
        )
        raise TwoReadingsError(
            f"the masks hold {shown} and the value {_VOID}, which often marks pixels to leave out",
            {"void": f"{_VOID} is no class: {len(others)} classes", "a class": f"{len(values)} classes"},
            hint="add --set data.ignore_index=255 to leave them out"
            f" (or name each value in {CLASS_FILE} beside the folders, if 255 is a class)",
        )


def _refuse_two_codings(surveys: Sequence[MaskSurvey], values: list[int]) -> None:
    """Refuse a set where some masks are of 0 and 1, and others of 0 and 255."""
    small = sum(1 in survey.codes and _VOID not in survey.codes for survey in surveys)
    large = sum(_VOID in survey.codes and 1 not in survey.codes for survey in surveys)
    both = sum(1 in survey.codes and _VOID in survey.codes for survey in surveys)
    each_has_one = small and large and not both
    if values == [0, 1, _VOID] and each_has_one:
        raise TwoReadingsError(
            f"{small} masks are of the values 0 and 1, {large} of 0 and {_VOID}",
            {
                "two codings of one class": f"1 and {_VOID} are the foreground",
                "one coding": f"{_VOID} marks pixels to leave out",
            },
            hint=f'write {CLASS_FILE} beside the folders: `background = 0` and `foreground = "1, {_VOID}"`,'
            f" or with `foreground = 1` and `ignore = {_VOID}`",
        )


def _refuse_lossy_colours(surveys: Sequence[MaskSurvey]) -> None:
    if any(survey.lossy and survey.kind == "colour" for survey in surveys):
        count = len({code for survey in surveys for code in colour_codes(survey)})
        raise DataError(
            f"the masks are coloured and saved with loss: {count} colours, most of them no class",
            hint="save the masks as PNG",
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


# Decides for a whole set whether masks follow the EXIF orientation of their photographs
# --------------------------------------------------------------------------------------
# A camera stores a photograph turned and says so in EXIF. A mask is drawn over the photograph as it is
# stored, or as it is shown; it has no EXIF itself. A photograph turned by a quarter that is no square shows
# which, by the shape of its mask; one turned by a half, mirrored, or square does not, but its set does.

Setting = Literal["auto", "upright", "stored"]


def masks_upright(surveys: Sequence[MaskSurvey], setting: Setting) -> tuple[bool | None, str]:
    """Decide how the masks of a set lie.

    Args:
        surveys: The survey of each mask.
        setting: `data.mask_orientation`.

    Returns:
        Whether masks are upright although photographs are stored turned, None if it makes no difference; and
        the decision as a phrase.

    Raises:
        DataError: The set shows neither, or both.
    """
    fits = Counter(survey.fit for survey in surveys)
    if setting != "auto":
        return setting == "upright", f"masks are {_PHRASE[setting == 'upright']}, by data.mask_orientation"
    shown, stored, either = fits[AS_SHOWN], fits[AS_STORED], fits[EITHER]
    if not shown + stored + either:
        return None, ""
    if bool(shown) != bool(stored):
        upright = bool(shown)
        return upright, f"masks are {_PHRASE[upright]}, as {shown + stored} of them show by their shape"
    if not either:
        return None, f"{shown} masks are {_PHRASE[True]}, {stored} are {_PHRASE[False]}, by their shapes"
    shapes = (
        f"the shape of {shown} masks says the first, of {stored} the second"
        if shown
        else "none of their shapes says which"
    )
    raise TwoReadingsError(
        f"{either} photographs are stored turned (EXIF), and {shapes}",
        {"upright": f"masks are {_PHRASE[True]}", "stored": f"masks are {_PHRASE[False]}"},
        hint="choose with --set data.mask_orientation=upright or --set data.mask_orientation=stored",
    )


def setting_of(phrase: str) -> Setting:
    """Return the setting that decides as a phrase of `masks_upright` says; auto: it says no one thing."""
    upright, stored = (_PHRASE[each] in phrase for each in (True, False))
    if upright == stored:
        return "auto"
    return "upright" if upright else "stored"


_PHRASE = {
    True: "drawn over the photograph as it is shown",
    False: "drawn over the photograph as it is stored, and are turned with it",
}


# Joins grey values of masks that were saved with loss, or scaled with smoothing, to the classes they were
# --------------------------------------------------------------------------------------------------------
# Such masks hold many values: those of the classes, values near them (compression), and values between them
# at edges (smoothing). A class has *even* pixels, whose neighbours are all alike, and the others have few.
# Values are joined only if the classes lie far apart and everything else is near one of them or at an edge;
# class numbers such as 0 to 20 never are, as they lie side by side.

_EVEN = 0.05
"""Share of a class's pixels that are even, at least."""
_RARE = 0.001
"""Share of all even pixels that a class has, at least."""
_NEAR = 8
"""Values this near to a class come from compression."""
_GAP, _SPAN = 24, 32
"""Smallest distance between two classes, and largest spread of one."""
_MOST = 8
_AT_EDGES = 0.6
_FEW_EDGES = 3
_HALF = 128


@dataclass(frozen=True, slots=True)
class Clusters:
    """Classes of grey values: the mean value of each, and the class of each value from 0 to 255."""

    values: tuple[int, ...]
    of_value: tuple[int, ...]

    def described(self, names: Sequence[str], values: Sequence[int]) -> str:
        """Say which of the values that occur are which class."""
        parts = []
        for place, name in enumerate(names):
            own = [value for value in values if self.of_value[value] == place]
            parts.append(
                f"{ranges(own)[0].split('-')[0]}-{own[-1]} → {name}" if len(own) > 1 else f"{own[0]} → {name}"
            )
        return f"mask values {', '.join(parts)}: saved with loss or smoothed once"


def find_clusters(surveys: Sequence[MaskSurvey]) -> Clusters | None:
    """Find the classes that the values of grey masks were; None: each value is a class, or it is unclear.

    Args:
        surveys: The survey of each mask; all are grey, with values up to 255.
    """
    total, even, between = _pixels(surveys)
    least = _RARE * even.total()
    cores = sorted(value for value in even if even[value] >= max(_EVEN * total[value], least, 1))
    lossy = any(survey.lossy for survey in surveys)
    # All values at first: those of compression lie near those of the classes, and none lie between.
    return _clusters(sorted(total), total, between, lossy) or _clusters(cores, total, between, lossy)


def _clusters(
    cores: Sequence[int], total: Counter[int], between: Counter[int], lossy: bool
) -> Clusters | None:
    """Return the classes around some values, or None if they are not clear."""
    clusters = _runs(cores)
    others = [value for value in total if value not in set(cores)]
    if not 2 <= len(clusters) <= _MOST or len(total) == len(clusters):
        return None
    near = {
        place: [value for value in others if cluster[0] - _NEAR <= value <= cluster[-1] + _NEAR]
        for place, cluster in enumerate(clusters)
    }
    far = [value for value in others if not any(value in values for values in near.values())]
    if sum(between[value] for value in far) < _AT_EDGES * sum(total[value] for value in far):
        return None
    spread = any(len(cluster) > 1 for cluster in clusters)
    if spread and not all(len(cluster) > 1 or near[place] for place, cluster in enumerate(clusters)):
        return None  # class numbers side by side, and one far from them
    has_edges = max(total) >= _HALF and (spread or len(others) >= _FEW_EDGES)
    if not lossy and not has_edges:
        return None
    gaps = [after[0] - before[-1] for before, after in pairwise(clusters)]
    spans = [cluster[-1] - cluster[0] for cluster in clusters]
    if min(gaps) < max(_GAP, 2 * max(spans)) or max(spans) > _SPAN:
        return None
    cuts = [(before[-1] + after[0] + 1) // 2 for before, after in pairwise(clusters)]
    of_value = tuple(sum(value >= cut for cut in cuts) for value in range(_HIGHEST + 1))
    return Clusters(tuple(_mean(cluster, total) for cluster in clusters), of_value)


def _mean(values: Sequence[int], total: Counter[int]) -> int:
    """Return the mean of the values of a class; at an end of the range, where values are clipped, the end."""
    if values[0] == 0 or values[-1] == _HIGHEST:
        return 0 if values[0] == 0 else _HIGHEST
    return round(sum(value * total[value] for value in values) / sum(total[value] for value in values))


def look_smoothed(surveys: Sequence[MaskSurvey]) -> bool:
    """Whether values occur that are at edges alone, or side by side as loss makes them."""
    total, even, between = _pixels(surveys)
    edges = [
        value
        for value in total
        if even[value] < _EVEN * total[value] and between[value] > _AT_EDGES * total[value]
    ]
    lossy = any(survey.lossy for survey in surveys)
    beside = sum(value + 1 in total for value in total)
    return len(edges) >= _FEW_EDGES or (lossy and beside >= _FEW_EDGES)


def _pixels(surveys: Sequence[MaskSurvey]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return the pixels of each value in all masks: all, even ones, and those between their neighbours."""
    total, even, between = Counter[int](), Counter[int](), Counter[int]()
    for survey in surveys:
        looked_at = survey.even or survey.counts
        for place, (code, count) in enumerate(zip(survey.codes, survey.counts, strict=True)):
            total[code] += count
            even[code] += looked_at[place]
            between[code] += survey.between[place] if survey.between else 0
    return total, even, between


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Group ascending values with small gaps."""
    groups: list[list[int]] = []
    for value in values:
        if groups and value - groups[-1][-1] <= _NEAR - 2:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups
