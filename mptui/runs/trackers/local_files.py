"""Trackers that write files: an event file for TensorBoard, and CSV."""

import csv
import io
import os
import re
import time
from pathlib import Path
from typing import Any

from mptui.events import Event, RunStarted
from mptui.io.files import open_regular
from mptui.io.own_files import make_folder
from mptui.registry.names import Kept

# An event file for TensorBoard, in the run's `tensorboard` folder: one for a run with all its resumes
# ----------------------------------------------------------------------------------------------------

FOLDER = "tensorboard"
_VERSION = "brain.Event:2"
"""First record of a file; from this version on, readers heed `SessionLog.START`."""
_NAME = re.compile(r"events\.out\.tfevents\.[0-9]{1,12}\.[^/\0]+")
"""What this writes, in its own folder; it ends with the name of the run's folder, which may be any."""


class TensorBoard:
    """Writes an event file for TensorBoard, by TensorBoard's own package, without torch."""

    def __init__(self, run: Path, kept: Kept) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._record = Record
        self._session_log = SessionLog
        self._summary = Summary
        name = kept.get("file")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            name = f"events.out.tfevents.{time.time():010.0f}.{run.resolve().name}"
        self._name = name
        self._file = GrowingFile(run / FOLDER / name, kept)
        self._writer = RecordWriter(self._file)
        if not self._file.size:
            self._write(Record(wall_time=time.time(), file_version=_VERSION))

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Write a record with the scalars.

        After a kill, steps since the last checkpoint are repeated: a record tells readers to forget them.
        """
        if isinstance(event, RunStarted) and event.resumed_from_step is not None:
            start = self._session_log(status=self._session_log.START)
            self._write(
                self._record(wall_time=event.time, step=event.resumed_from_step + 1, session_log=start)
            )
        if scalars:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            self._write(
                self._record(wall_time=event.time, step=event.step, summary=self._summary(value=values))
            )

    def flush(self) -> Kept:
        """Write the records."""
        self._file.flush()
        return {"file": self._name, "size": self._file.size}

    def close(self) -> Kept:
        """Write the records, and close the file."""
        self._file.close()
        return {"file": self._name, "size": self._file.size}

    def _write(self, record: Any) -> None:  # noqa: ANN401 - a class that its package makes at import
        self._writer.write(record.SerializeToString())


# metrics.csv in the run directory: a line for each scalar, to be pivoted by spreadsheets and pandas
# --------------------------------------------------------------------------------------------------

NAME = "metrics.csv"
COLUMNS = ("time", "step", "metric", "value")
"""Seconds since the epoch, optimizer step, name and value of a scalar."""


class CsvFile:
    """Writes metrics.csv."""

    def __init__(self, run: Path, kept: Kept) -> None:
        self._file = GrowingFile(run / NAME, kept)
        if not self._file.size:
            self._write([COLUMNS])

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Add a line for each scalar."""
        self._write([(event.time, event.step, name, value) for name, value in scalars.items()])

    def flush(self) -> Kept:
        """Write the lines."""
        self._file.flush()
        return {"size": self._file.size}

    def close(self) -> Kept:
        """Write the lines, and close the file."""
        self._file.close()
        return {"size": self._file.size}

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._file.write(lines.getvalue().encode())


# A file of a tracker that only grows, and has each event once also after a kill
# ------------------------------------------------------------------------------


class GrowingFile:
    """Appends bytes; what was written after the last stored size is cut off when it is opened again.

    Args:
        path: The file; links are refused. If it is missing or shorter than its stored size, it is written
            anew from the first event on.
        kept: What the tracker has kept: `size` is the stored size.

    Attributes:
        size: Bytes of the file; 0 for a new one.

    Raises:
        OSError: It can't be opened.
    """

    def __init__(self, path: Path, kept: Kept) -> None:
        make_folder(path.parent)
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        self._waiting = bytearray()
        size = kept.get("size")
        if not isinstance(size, int) or not 0 < size <= os.fstat(self._file).st_size:
            size = kept["position"] = 0
        os.ftruncate(self._file, size)
        self.size = size

    def write(self, data: bytes) -> None:
        """Append bytes with the next `flush`."""
        self._waiting += data

    def flush(self) -> None:
        """Append what waits to the file.

        Raises:
            OSError: The disk is full or gone.
        """
        while self._waiting:
            written = os.write(self._file, self._waiting)
            self.size += written
            del self._waiting[:written]

    def close(self) -> None:
        """Append what waits, and close the file."""
        self.flush()
        os.close(self._file)
