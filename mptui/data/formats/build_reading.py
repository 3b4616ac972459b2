"""Builds the reading of a set from its listed files and from the scan of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mptui.data.core.reading import LeftOut, Reading
from mptui.data.core.types import IGNORE, Problem
from mptui.data.decode.mask import MaskCoding
from mptui.data.formats.folder_format import Found
from mptui.text import ranges

_BUILT_IN = "built in"
_OWN = "its own"
_HELD_OUT = "held out by the seed"
IGNORED = "ignored"
"""The name of what is no class, in phrases of `Reading.mask_code`."""


def build_reading(
    found: Found,
    classes: tuple[str, ...],
    counts: tuple[Sequence[int], Sequence[int]],
    problems: Iterable[Problem],
    val_fraction: float,
    coding: MaskCoding | None = None,
) -> Reading:
    """Build the reading of a set.

    Args:
        found: The listed files.
        classes: Names of the classes.
        counts: Samples, or pixels, of each class in training and in validation.
        problems: The samples that can't be used.
        val_fraction: The share that is held out if the set has no validation half.
        coding: Coding of the masks, if there are any.
    """
    return Reading(
        layout=found.layout or _BUILT_IN,
        split=found.split
        or (_OWN if found.train_rows < len(found.images) else held_out_phrase(val_fraction)),
        classes=classes,
        train_counts=tuple(map(int, counts[0])),
        val_counts=tuple(map(int, counts[1])),
        mask_code=() if coding is None else tuple(_phrases(coding)),
        test=found.test,
        left_out=(*found.left_out, *by_reason(problems)),
    )


def held_out_phrase(fraction: float) -> str:
    """Say that the validation half is held out, as a phrase."""
    return f"{_HELD_OUT}: {fraction:.0%} of each class"


def is_held_out(split: str) -> bool:
    """Whether a phrase of `Reading.split` says that the validation half is held out."""
    return split.startswith(_HELD_OUT)


def by_reason(problems: Iterable[Problem]) -> Iterator[LeftOut]:
    """Group files that can't be used by the reason."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for problem in problems:
        files[problem.reason].append(problem.path)
    for reason, paths in files.items():
        yield LeftOut(reason, tuple(paths))


def _phrases(coding: MaskCoding) -> Iterator[str]:
    """Yield the values or colours of each class, and those that are ignored."""
    codes: defaultdict[int, list[int]] = defaultdict(list)
    for code, index in zip(coding.codes, coding.indices, strict=True):
        codes[index].append(code)
    for index, name in [*enumerate(coding.classes), (IGNORE, IGNORED)]:
        if codes[index]:
            texts = [f"#{code:06x}" for code in codes[index]] if coding.by_colour else ranges(codes[index])
            yield f"{', '.join(texts)}: {name}"
