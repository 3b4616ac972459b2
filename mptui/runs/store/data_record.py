"""data.json: a fingerprint of the data set of a run when it was last trained.

A resume compares it with the current data and reports changes.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mptui.data.core.types import RGB, Dataset, PixelFormat
from mptui.data.formats.fingerprint import Fingerprint, changes, fingerprint
from mptui.runs.store import directory
from mptui.runs.store.index import read_run

NAME = "data.json"


def note_data(run: Path, dataset: Dataset, warn: Callable[[str, str], None]) -> None:
    """Save the fingerprint of the data set, and warn if it differs from the saved one.

    Args:
        run: The run directory; without the file, the run is new or of an older version.
        dataset: The opened data set.
        warn: Called with code and text of a warning.

    Raises:
        DiskError: The file can't be written.
    """
    before, now = _read(run / NAME), fingerprint(dataset)
    if before is not None and (told := changes(before, now)):
        text = f"the data of this run has changed: {'; '.join(told)}"
        warn("data_changed", f"{text}. The run continues with the changed data.")
    if before != now:
        counts = [int(count) for count in dataset.class_counts]
        document = {"version": directory.VERSION, **asdict(now), "class_counts": counts}
        directory.write_json(run / NAME, document)


def data_changes(run: Path, dataset: Dataset) -> str | None:
    """Describe how the data of a run has changed since its last training; None: not at all, or unknown."""
    before = _read(run / NAME)
    told = [] if before is None else changes(before, fingerprint(dataset))
    return "; ".join(told) or None


def recorded_classes(run: Path) -> tuple[str, ...] | None:
    """Return the classes of a run in the order of its network's outputs; None if they are not recorded.

    Runs of early versions have them in their journal alone.
    """
    if (fingerprint := _read(run / NAME)) is not None:
        return fingerprint.classes
    try:
        started = read_run(run).started
    except OSError:
        return None
    return None if started is None else tuple(started.classes)


def classes_of_weights(path: Path) -> tuple[str, ...] | None:
    """Return the classes of a weights file in a checkpoint of a run; None for other files."""
    folder = path.absolute().parent.parent
    return recorded_classes(folder.parent) if folder.name == directory.CHECKPOINTS else None


def recorded_counts(run: Path) -> list[int]:
    """Return the training samples, or pixels, of each class of a run; empty if they are not recorded."""
    counts = directory.read_json(run / NAME).get("class_counts")
    return counts if isinstance(counts, list) and all(type(count) is int for count in counts) else []


def recorded_pixels(run: Path) -> PixelFormat:
    """Return the format of a run's images."""
    fingerprint = _read(run / NAME)
    return RGB if fingerprint is None else fingerprint.pixels


def _read(path: Path) -> Fingerprint | None:
    """Return the saved fingerprint; None if it is missing or unreadable."""
    document = directory.read_json(path)
    # version 0.1.0 recorded no format: all images were RGB
    document = {"bands": RGB.bands, "dtype": RGB.dtype, **document}
    values: dict[str, Any] = {name: document.get(name) for name in Fingerprint.__dataclass_fields__}
    kinds = {
        **dict.fromkeys(("train_samples", "val_samples", "bands"), int),
        **dict.fromkeys(("names", "sizes", "labels", "dtype"), str),
        "classes": list,
    }
    if not all(type(value) is kinds[name] for name, value in values.items()):
        return None
    values["classes"] = tuple(map(str, values["classes"]))
    return Fingerprint(**values)
