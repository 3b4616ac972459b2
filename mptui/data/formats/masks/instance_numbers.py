"""Recognizes masks whose values are the numbers of objects, not classes."""

from collections import Counter
from collections.abc import Iterator, Sequence

from mptui.data.decode.mask import MaskSurvey
from mptui.data.formats.masks.class_file import CLASS_FILE
from mptui.errors import TwoReadingsError

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
    if len(marked) >= _SEVERAL and len(numbers) >= _FEWEST_VALUES and once >= _ALONE * len(numbers):
        what = f"{once} of {len(numbers)} values above 0 are in one mask each"
        yield f"{what}: if these are numbers of objects, {join} joins them to one class"
    looked_at, compact = (sum(survey.regions[place] for survey in surveys) for place in (0, 1))
    each = looked_at / len(marked)
    if len(numbers) < _FEWEST_VALUES or each < _A_FEW or compact < _COMPACT * looked_at:
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
        hint=f"Write {join} to join all objects to one class; name each value there if they are classes.",
    )
