"""events.jsonl: what happened, one event a line, append only.

Each event is one `write()` of one line. A process that dies in the middle of one leaves a torn last line:
readers take it for the end of the file, and the next writer removes it.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

from mptui.errors import DiskError
from mptui.events import Event, from_record, to_record

NAME = "events.jsonl"


class Journal:
    """Appends events to a run's journal. One process writes; its threads may share it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            _cut_torn_line(self._file)
        except OSError as error:
            raise _disk_error(self._path, error) from error

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            DiskError: The disk is full or gone.
        """
        line = json.dumps(to_record(event), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                _cut_torn_line(self._file)
            raise _disk_error(self._path, error) from error

    def close(self) -> None:
        """End; what was written is on its way to the disk."""
        os.close(self._file)


def read_journal(directory: Path) -> Iterator[Event]:
    """The events of a run, oldest first. Never raises for what a line holds; a torn line is the end."""
    try:
        file = (directory / NAME).open("rb")
    except OSError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            event = _parsed(line)
            if event is not None:
                yield event


def _parsed(line: bytes) -> Event | None:
    try:
        record = json.loads(line)
        return from_record(record) if isinstance(record, dict) else None
    except (ValueError, RecursionError):
        return None


def _cut_torn_line(file: int) -> None:
    """Remove what lies after the last line break, looking only at the file's end."""
    size = os.lseek(file, 0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - 65536)
        block = os.pread(file, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)


def _disk_error(path: Path, error: OSError) -> DiskError:
    return DiskError(f"{path}: {error.strerror}", hint="make room, or choose another disk with --runs-dir")
