"""The reading of a set: built from its files, kept with the run, applied where it is opened again."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mptui.config.schema import DataConfig
from mptui.data.describe import reading_changes, reading_document
from mptui.data.folder_format import Found
from mptui.data.mask_classes import setting_of
from mptui.data.masks import MAX_CLASSES, MaskCoding
from mptui.data.types import IGNORE, Dataset, LeftOut, Problem, Reading
from mptui.errors import DataError
from mptui.text import ranges

# Builds the reading of a set from its listed files and from the scan of them
# ---------------------------------------------------------------------------

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
    *,
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


# The reading that a run keeps of its data, applied to a set that is opened again
# -------------------------------------------------------------------------------

_LATER = "is of a validation half that this run did not have when it began"


@dataclass(frozen=True, slots=True)
class KeptReading:
    """What a run decided about its data when it began.

    Attributes:
        held_out: Whether it held out validation samples by its seed.
        coding: What the values or colours of its masks mean; None: it has none, or they are not recorded.
        orientation: How its masks lie to photographs stored turned, as `data.mask_orientation`; "auto": no
            photograph was.
    """

    held_out: bool
    coding: MaskCoding | None
    orientation: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "KeptReading":
        """Return the reading of a document of `reading_document`."""
        return cls(
            held_out=is_held_out(str(document.get("split"))),
            coding=_coding(document),
            orientation=setting_of(str(document.get("orientation", ""))),
        )

    def settings(self, data: DataConfig) -> DataConfig:
        """Return the data settings with what was decided of them."""
        if data.mask_orientation != "auto":
            return data
        return data.model_copy(update={"mask_orientation": self.orientation})

    def applied(self, found: Found) -> Found:
        """Return the files of a set as the run had split them, with its coding of the masks."""
        if found.masks is not None and self.coding is not None:
            found = replace(found, coding=self.coding)
        if not self.held_out or found.train_rows == len(found.images):
            return found
        later = tuple(found.images[row] for row in range(found.train_rows, len(found.images)))
        return replace(
            found,
            images=tuple(found.images[row] for row in range(found.train_rows)),
            labels=None if found.labels is None else found.labels[: found.train_rows],
            masks=None if found.masks is None else tuple(found.masks[row] for row in range(found.train_rows)),
            split="",
            left_out=(*found.left_out, LeftOut(_LATER, later)),
        )


def _coding(document: Mapping[str, Any]) -> MaskCoding | None:
    """Return the coding that phrases of `Reading.mask_code` describe; None if they describe none."""
    try:
        names = [str(each["name"]) for each in document["classes"]]
        number = {IGNORED: IGNORE, **{name: place for place, name in enumerate(names)}}
        indices: dict[int, int] = {}
        colours = set()
        for phrase in document["mask_code"]:
            codes, _, name = str(phrase).partition(": ")
            for code in codes.split(", "):
                colours.add(code.startswith("#"))
                first, _, last = code.partition("-")
                low = int(first[1:], 16) if code.startswith("#") else int(first)
                high = int(last or low)
                if high - low > MAX_CLASSES:
                    return None
                indices |= dict.fromkeys(range(low, high + 1), number[name])
    except (KeyError, TypeError, ValueError):
        return None
    if len(colours) != 1 or IGNORED in names:
        return None
    codes_in_order = tuple(sorted(indices))
    return MaskCoding(
        tuple(names), codes_in_order, tuple(indices[code] for code in codes_in_order), colours.pop()
    )


# Opens the data of a run that goes on, as the run has read it
# ------------------------------------------------------------

Open = Callable[[KeptReading | None], Dataset]

_HINT = (
    "restore the data as it was, or give a copy of it with --data FOLDER; or learn from it as it is"
    " now in a new run: mptui run"
)


def read_again(open_as: Open, before: Mapping[str, Any] | None) -> tuple[Dataset, str]:
    """Open the data of a run, by its own reading where the present one differs.

    Args:
        open_as: Opens the data as they are, or by a kept reading.
        before: The reading that the run keeps, by `reading_document`; None: it is a new run, or none is kept.

    Returns:
        The data set, and what differs, as a sentence; empty: nothing.

    Raises:
        DataError: The data can't be read as the run has read them any more; and as `open_dataset`.
    """
    if before is None:
        return open_as(None), ""
    try:
        dataset = open_as(None)
    except DataError as error:
        differs = error.message.partition("\n")[0]
    else:
        differs = "; ".join(reading_changes(before, reading_document(dataset)))
        if not differs:
            return dataset, ""
    try:
        dataset = open_as(KeptReading.of(before))
    except DataError as error:
        raise DataError(f"this run can't read its data as it did: {error.message}", hint=_HINT) from error
    if left := reading_changes(before, reading_document(dataset)):
        raise DataError(f"this run can't read its data as it did: {'; '.join(left)}", hint=_HINT)
    return dataset, f"the data is read as this run has read it before; a new run would differ: {differs}"
