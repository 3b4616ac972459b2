"""What a set was understood to be, in four lines: its split, its classes, its images, what is left out."""

from collections.abc import Iterator, Sequence

from mptui.data.core.reading import LeftOut, Reading
from mptui.data.core.types import Dataset
from mptui.registry.samples import SampleKind
from mptui.text import clean, clean_name

_MOST = 4
_LONGEST = 300


def reading_lines(dataset: Dataset) -> list[str]:
    """Return what a set was understood to be in four lines, or three if its files have not been listed."""
    reading = dataset.reading
    where = "" if reading is None else f"{reading.layout}, "
    counts = f"{len(dataset.train):,} training and {len(dataset.val):,} validation images"
    lines = [
        f"Data: {dataset.name}: {where}{counts}{'' if reading is None else f'; split: {reading.split}'}",
        f"Classes: {_classes(dataset)}",
        f"Images: {'; '.join([*image_facts(dataset), *_mask_code(dataset)])}",
    ]
    if reading is not None:
        lines.append(f"Left out: {_left_out(reading)}")
    return [clean(line, _LONGEST) for line in lines]


def image_facts(dataset: Dataset) -> Iterator[str]:
    """Yield sizes and format of a set's images, the orientation of its masks, and what was cleaned."""
    if dataset.sides is not None:
        low, median, high = dataset.sides
        yield f"{low} px" if low == high else f"shorter sides {low} to {high} px, median {median}"
    yield str(dataset.pixels)
    if (reading := dataset.reading) is None:
        return
    if reading.orientation:
        yield reading.orientation
    yield from reading.cleaned


def _mask_code(dataset: Dataset) -> Iterator[str]:
    if dataset.reading is not None and dataset.reading.mask_code:
        yield f"masks: {some(dataset.reading.mask_code)}"


def reason_words(left_out: LeftOut) -> str:
    """Return a reason with its number of files: `12 (has no mask)`."""
    return f"{left_out.count:,} ({clean(left_out.reason, 80)})"


def some(names: Sequence[str]) -> str:
    """Join the first few names."""
    shown = ", ".join(clean_name(name, 60) for name in names[:_MOST])
    return shown if len(names) <= _MOST else f"{shown}, … ({len(names)} in all)"


def _classes(dataset: Dataset) -> str:
    if dataset.kind is SampleKind.IMAGE:
        return "none: images alone are learned"
    names, counts = dataset.classes, list(dataset.class_counts)
    if len(counts) != len(names):
        return f"{len(names)}: {some(names)}"
    unit = "training pixels" if dataset.kind is SampleKind.MASK else "training images"
    if len(names) <= _MOST:
        each = (f"{clean_name(name, 60)} {count:,}" for name, count in zip(names, counts, strict=True))
        return f"{len(names)}: {', '.join(each)} {unit}"
    low, high = counts.index(min(counts)), counts.index(max(counts))
    if counts[low] == counts[high]:
        return f"{len(names)}: {some(names[:_MOST])}, …; {counts[low]:,} {unit} each"
    return (
        f"{len(names)}: {some(names[:_MOST])}, …; {clean_name(names[low], 60)} has the fewest {unit},"
        f" {counts[low]:,}, {clean_name(names[high], 60)} the most, {counts[high]:,}"
    )


def _left_out(reading: Reading) -> str:
    parts = [reason_words(each) for each in reading.left_out[:_MOST]]
    if (more := sum(each.count for each in reading.left_out[_MOST:])) > 0:
        parts.append(f"{more:,} for other reasons")
    if reading.test:
        parts.append(f"{len(reading.test):,} of a test half")
    return ", ".join(parts) if parts else "nothing"
