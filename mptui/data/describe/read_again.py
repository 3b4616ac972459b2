"""Opens the data of a run that goes on, as the run has read it."""

from collections.abc import Callable, Mapping
from typing import Any

from mptui.data.core.types import Dataset
from mptui.data.describe.document import reading_changes, reading_document
from mptui.data.formats.kept_reading import KeptReading
from mptui.errors import DataError

Open = Callable[[KeptReading | None], Dataset]

_HINT = (
    "restore the data as it was, or give a copy of it with --set data.path=FOLDER; or learn from it as it is"
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
