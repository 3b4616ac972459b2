"""events.jsonl: what happened, one event a line, append only.

Each event is one `write()` of one line. A process that dies in the middle of one leaves a torn last line:
readers take it for the end of the file, and the next writer removes it.

While the disk is full or gone, events wait in memory, and are written in order once it is back.
"""

import contextlib
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mptui.codec import from_record, to_record
from mptui.errors import DiskError
from mptui.events import SCHEMA_VERSION, Event

NAME = "events.jsonl"


HEADER = "journal"
"""The `event` of the first line, which is none: it tells the version of the others."""

_LONGEST_HEADER = 4096

MOST_WAITING = 100_000
"""Events that wait in memory for a disk: some 30 MB, or hours of a run; beyond it the oldest go."""


class Journal:
    """Appends events to a run's journal. One process writes; its threads may share it.

    Attributes:
        trouble: Why events wait in memory; None while all is on its way to the disk.
        lost: How many events had to go, since too many waited.

    Raises:
        DiskError: It can't be opened or repaired.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self.trouble: DiskError | None = None
        self.lost = 0
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._end = _cut_torn_line(self._file)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        if not self._end:
            self._append(
                {"event": HEADER, "time": round(time.time(), 3), "step": 0, "version": SCHEMA_VERSION}
            )

    def write(self, event: Event) -> None:
        """Append one event, or keep it until the disk takes it."""
        self._append(to_record(event))

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self._waiting.append(line)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.lost += 1
            if self.trouble is None:
                self._write_waiting()

    def retry(self) -> bool:
        """Write what waits, if the disk is back; whether nothing waits any more."""
        with self._lock:
            if self.trouble is not None:
                self._write_waiting()
            return self.trouble is None

    def untouched(self) -> bool:
        """Whether it ends where this process has left it: nobody else has written to it."""
        with self._lock:
            try:
                return os.path.samestat(os.fstat(self._file), self._path.stat()) and (
                    os.fstat(self._file).st_size == self._end
                )
            except OSError:
                return False

    def abandon(self) -> None:
        """Drop what waits: the file is another process's by now."""
        with self._lock:
            self._waiting.clear()
            self.trouble = None

    @property
    def waiting(self) -> int:
        """How many events wait for the disk."""
        return len(self._waiting)

    def close(self) -> None:
        """End; what was written is on its way to the disk."""
        self.retry()
        os.close(self._file)

    def _write_waiting(self) -> None:
        try:
            if self.trouble is not None:  # whatever a failed write left there
                os.ftruncate(self._file, self._end)
            while self._waiting:
                line = self._waiting[0]
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._end += len(line)
                self._waiting.popleft()
            self.trouble = None
        except OSError as error:
            self.trouble = _disk_error(self._path, error)
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)


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
            event = parsed(line)
            if event is not None:
                yield event


def parsed(line: bytes) -> Event | None:
    """The event of a line of a journal; None for what is none."""
    try:
        record = json.loads(line)
        return from_record(record) if isinstance(record, dict) else None
    except (ValueError, RecursionError):
        return None


def version_of(directory: Path) -> int | None:
    """The version of a run's journal; None where it does not tell."""
    try:
        with (directory / NAME).open("rb") as file:
            header = json.loads(file.readline(_LONGEST_HEADER))
        return int(header["version"]) if header["event"] == HEADER else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _cut_torn_line(file: int) -> int:
    """Remove what lies after the last line break, looking only at the file's end; returns the size left."""
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
    return end


def _disk_error(path: Path, error: OSError) -> DiskError:
    return DiskError(f"{path}: {error.strerror}", hint="make room, or choose another disk with --runs-dir")
