"""data.json: a fingerprint of the data set of a run when it was last trained, and how it was read.

A resume compares it with the current data and reports changes. What a network has learned from is in its
checkpoint; only runs of earlier versions have it here.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mptui.config.schema import RunConfig
from mptui.data.core.learned import LearnedData
from mptui.data.core.types import RGB, Dataset
from mptui.data.describe.document import reading_changes, reading_document
from mptui.data.formats.fingerprint import Fingerprint, changes, fingerprint
from mptui.engine.checkpoint.files import checkpoints, read_checkpoint
from mptui.errors import DiskError, RunDirectoryError
from mptui.runs.store import directory
from mptui.runs.store.index import read_run

NAME = "data.json"
_DECIDE = ("name", "path", "val_fraction", "ignore_index", "mask_orientation", "class_folders", "bands")
"""Settings of [data] that decide how it is read."""


def note_data(run: Path, dataset: Dataset, warn: Callable[[str, str], None]) -> None:
    """Save the fingerprint of the data set, and warn if it differs from the saved one.

    Args:
        run: The run directory; without the file, the run is new or of an older version.
        dataset: The opened data set.
        warn: Called with code and text of a warning.

    Raises:
        DiskError: The file can't be written.
    """
    before, now, reading = _read(run / NAME), fingerprint(dataset), reading_document(dataset)
    recorded = directory.read_json(run / NAME).get("reading")
    if before is not None and (told := [*changes(before, now), *reading_changes(recorded, reading)]):
        text = f"the data of this run has changed: {'; '.join(told)}"
        files = [before.train_samples + before.val_samples, before.names, before.classes]
        if dataset.held_out and files != [now.train_samples + now.val_samples, now.names, now.classes]:
            text += "; its validation samples are drawn anew, and some of them may have been trained on"
        warn("data_changed", f"{text}. The run continues with the changed data.")
    if before != now or recorded != reading:
        counts = [int(count) for count in dataset.class_counts]
        document = {"version": directory.VERSION, **asdict(now), "class_counts": counts, "reading": reading}
        directory.write_json(run / NAME, document)


def kept_reading(run: Path, before: RunConfig | None, now: RunConfig) -> dict[str, Any] | None:
    """Return how a run has read its data; None if it is not recorded, or settings that decide it are new."""
    if before is None or any(getattr(before.data, key) != getattr(now.data, key) for key in _DECIDE):
        return None
    recorded = directory.read_json(run / NAME).get("reading")
    return recorded if isinstance(recorded, dict) else None


def data_changes(run: Path, dataset: Dataset) -> str | None:
    """Describe how the data of a run has changed since its last training; None: not at all, or unknown."""
    before = _read(run / NAME)
    if before is None:
        return None
    recorded = directory.read_json(run / NAME).get("reading")
    told = [*changes(before, fingerprint(dataset)), *reading_changes(recorded, reading_document(dataset))]
    return "; ".join(told) or None


def learned_in(run: Path, state: Mapping[str, Any]) -> LearnedData | None:
    """Return what the network in a checkpoint has learned from; None if it is not recorded.

    Args:
        run: The run directory. Runs of earlier versions record it there alone.
        state: The state of the checkpoint.

    Raises:
        RunDirectoryError: The checkpoint has facts that this version can't read.
    """
    if (record := state.get("data")) is None:
        return _recorded(run)
    try:
        return LearnedData.read(record)
    except ValueError as error:
        raise RunDirectoryError(
            f"{run}: a checkpoint doesn't say what its network has learned from: {error}",
            hint="use another checkpoint, or the version of mptui that has written it",
        ) from error


def learned_before(run: Path) -> LearnedData | None:
    """Return what the network in the newest readable checkpoint of a run has learned from."""
    with contextlib.suppress(OSError):
        for path in reversed(checkpoints(run / directory.CHECKPOINTS)):
            with contextlib.suppress(RunDirectoryError, DiskError):
                return learned_in(run, read_checkpoint(path, ()).state)
    return None


def learned_by_weights(path: Path) -> LearnedData | None:
    """Return what a weights file in a checkpoint of a run has learned from; None for other files."""
    checkpoint = path.absolute().parent
    if checkpoint.parent.name != directory.CHECKPOINTS:
        return None
    state: Mapping[str, Any] = {}
    with contextlib.suppress(RunDirectoryError, DiskError):
        state = read_checkpoint(checkpoint, ()).state
    return learned_in(checkpoint.parent.parent, state)


def _recorded(run: Path) -> LearnedData | None:
    """Return what a run has learned from, by its last data.json, or, in an early version, by its journal."""
    if (fingerprint := _read(run / NAME)) is None:
        try:
            started = read_run(run).started
        except OSError:
            return None
        return None if started is None else LearnedData(classes=started.classes)
    counts = directory.read_json(run / NAME).get("class_counts")
    return LearnedData(
        classes=list(fingerprint.classes),
        class_counts=counts if isinstance(counts, list) and all(type(n) is int for n in counts) else [],
        bands=fingerprint.bands,
        dtype=fingerprint.dtype,
    )


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
