"""An event file for TensorBoard, in the run's `tensorboard` folder: one for a run with all its resumes."""

import re
import time
from pathlib import Path
from typing import Any

from mptui.events import Event, RunStarted
from mptui.registry.tracker import Kept
from mptui.runs.trackers.growing_file import GrowingFile

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

        self._record, self._session_log, self._summary = Record, SessionLog, Summary
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
