"""What a set was understood to be, as a document for programs."""

from typing import Any

from mptui.data.core.types import Dataset
from mptui.data.describe.findings import DataFinding
from mptui.data.formats.masks.orientation import setting_of
from mptui.registry.tasks import task_for

FORMAT_VERSION = 1

_MOST_FILES = 100


def reading_document(dataset: Dataset) -> dict[str, Any]:
    """Return the facts of a reading in JSON's types; of left-out files the first names of each reason."""
    reading = dataset.reading
    counts = list(map(int, dataset.class_counts))
    val_counts = list(() if reading is None else reading.val_counts)
    return {
        "layout": None if reading is None else reading.layout,
        "split": None if reading is None else reading.split,
        "train_samples": len(dataset.train),
        "val_samples": len(dataset.val),
        "test_samples": 0 if reading is None else len(reading.test),
        "classes": [
            {
                "name": name,
                "train": counts[number] if number < len(counts) else None,
                "val": val_counts[number] if number < len(val_counts) else None,
            }
            for number, name in enumerate(dataset.classes)
        ],
        "sides": None
        if dataset.sides is None
        else dict(zip(("smallest", "median", "largest"), dataset.sides, strict=True)),
        "pixels": {"bands": dataset.pixels.bands, "dtype": dataset.pixels.dtype},
        "mask_code": [] if reading is None else list(reading.mask_code),
        "orientation": "" if reading is None else reading.orientation,
        "cleaned": [] if reading is None else list(reading.cleaned),
        "left_out": []
        if reading is None
        else [
            {"reason": each.reason, "count": each.count, "files": list(each.files[:_MOST_FILES])}
            for each in reading.left_out
        ],
    }


def reading_changes(before: object, now: dict[str, Any]) -> list[str]:
    """Describe how a set is read otherwise than it was.

    Args:
        before: The document that was kept; anything else, as in records of early versions: unknown.
        now: The present one.
    """
    if not isinstance(before, dict):
        return []
    told = [
        f"its {word} is {now[key]!r} instead of {before[key]!r}"
        for key, word in (("layout", "format"), ("split", "split"))
        if before.get(key) is not None and before[key] != now[key]
    ]
    lay, lie = (setting_of(str(each.get("orientation", ""))) for each in (before, now))
    if lay != lie and "auto" not in {lay, lie}:
        told.append(
            f"photographs stored turned (EXIF): {now['orientation']}; before: {before['orientation']}"
        )
    codes = before.get("mask_code")
    if isinstance(codes, list) and codes != now["mask_code"]:
        gone = [str(code) for code in codes if code not in now["mask_code"]]
        new = [str(code) for code in now["mask_code"] if code not in codes]
        told.append(f"masks are read otherwise: {', '.join(new)} instead of {', '.join(gone)}")
    return told


def document(where: str, dataset: Dataset, findings: list[DataFinding]) -> dict[str, Any]:
    """Return the document of `mptui data --json`."""
    return {
        "version": FORMAT_VERSION,
        "data": where,
        "name": dataset.name,
        "task": task_for(dataset.kind),
        **reading_document(dataset),
        "warnings": list(dataset.warnings),
        "findings": [{"what": each.what, "do": each.do} for each in findings],
    }
