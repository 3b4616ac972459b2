"""data.json: what the set of a run consisted of when it was last trained on.

A resume compares it with the set as it is then, and says what has changed.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mptui.data.fingerprint import Fingerprint, changes, fingerprint
from mptui.data.types import Dataset
from mptui.runs import directory

NAME = "data.json"

_LARGEST = 16 << 20


def note_data(run: Path, dataset: Dataset, warn: Callable[[str, str], None]) -> None:
    """Keep what the set consists of, and warn where that is not what was kept before.

    Args:
        run: The run's directory; one without the file is of an older version, or new.
        dataset: The set, opened.
        warn: Called with the code and the text of a warning.

    Raises:
        DiskError: The file can't be written.
    """
    before, now = _read(run / NAME), fingerprint(dataset)
    if before is not None and (told := changes(before, now)):
        text = f"the data has changed since this run was trained on it: {'; '.join(told)}"
        warn("data_changed", f"{text}. The run goes on with the data as it is now.")
    if before != now:
        directory.write_json(run / NAME, {"version": directory.VERSION, **asdict(now)})


def _read(path: Path) -> Fingerprint | None:
    """What was kept; None where nothing was, or it can't be read."""
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_LARGEST))
        values = {name: document[name] for name in Fingerprint.__dataclass_fields__}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    counts, texts = ("train_samples", "val_samples"), ("names", "sizes", "labels")
    if not all(type(values[name]) is int and 0 <= values[name] < 1 << 62 for name in counts):
        return None
    if not all(isinstance(values[name], str) for name in texts) or not isinstance(values["classes"], list):
        return None
    return Fingerprint(**{**values, "classes": tuple(map(str, values["classes"]))})
