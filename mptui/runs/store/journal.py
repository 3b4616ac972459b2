"""events.jsonl: what happened, one event a line, append only.

Each event is one `write()` of one line. A process that dies in the middle of one leaves a torn last line:
readers take it for the end of the file, and the next writer removes it.

While the disk is full or gone, events wait in memory, and are written in order once it is back.

A process that takes a run over replaces the file by a copy: an earlier owner that was stopped in the middle
of a write appends to the old one, which has no name any more.
"""

import contextlib
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mptui.codec import to_record
from mptui.errors import DiskError
from mptui.events import SCHEMA_VERSION, Event
from mptui.io.atomic import partial_path, write_synced
from mptui.regular import open_regular
from mptui.runs.view.events.event_registry import event_of

NAME = "events.jsonl"


HEADER = "journal"
"""The `event` of the first line, which is none: it tells the version of the others."""

_LONGEST_HEADER = 4096
_BLOCK = 1 << 20

MOST_WAITING = 100_000
"""Events that wait in memory for a disk: some 30 MB, or hours of a run; beyond it the oldest go."""


class Journal:
    """Appends events to a run's journal. One process writes; its threads may share it.

    Args:
        directory: The run's directory.
        is_owner: Whether this process still owns the run. Called without the journal's lock, before events
            go to a file that is not as this process has left it.

    Attributes:
        trouble: Why events wait in memory; None while all is on its way to the disk.
        lost: How many events had to go, since too many waited.

    Raises:
        DiskError: It can't be opened or repaired.
    """

    def __init__(self, directory: Path, is_owner: Callable[[], bool] = lambda: True) -> None:
        self._path, self._is_owner = directory / NAME, is_owner
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._closed = self._torn = False
        self.trouble: DiskError | None = None
        self.lost = 0
        try:
            self._file = _open_copy(self._path)
            self._end = _cut_torn_line(self._file)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        if not self._end:
            self._append(_header())

    def write(self, event: Event) -> None:
        """Append one event, or keep it until the disk takes it; after `close` it is dropped."""
        self._append(_line(to_record(event)))

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            self._waiting.append(line)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.lost += 1
            if self.trouble is None:
                self._write_waiting()

    def retry(self) -> bool:
        """Write what waits, if the disk is back; whether nothing waits any more.

        A file that another program has replaced or changed is opened anew, and the events are appended there.
        """
        with self._lock:
            if self.trouble is None or self._closed:
                return self.trouble is None
            if self._torn or self._can_go_on():
                self._write_waiting()
                return self.trouble is None
        return self._open_again()

    def untouched(self) -> bool:
        """Whether it ends where this process has left it: nobody else has written to it."""
        with self._lock:
            return not self._closed and self._can_go_on()

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
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def _is_as_left(self) -> bool:
        """Whether the file of the name is the one that is open, and as long as this process has left it.

        Raises:
            OSError: There is none, or the disk is gone.
        """
        mine, named = os.fstat(self._file), os.stat(self._path)  # noqa: PTH116 - for each event, and faster
        return os.path.samestat(mine, named) and mine.st_size == self._end

    def _can_go_on(self) -> bool:
        """The same; False too where there is no file of the name."""
        try:
            return self._is_as_left()
        except OSError:
            return False

    def _write_waiting(self) -> None:
        try:
            if self._torn:  # whatever a failed write left there
                os.ftruncate(self._file, self._end)
                self._torn = False
            if not self._is_as_left():
                self.trouble = _changed(self._path)
                return
            while self._waiting:
                line = self._waiting[0]
                self._torn = True
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._torn = False
                self._end += len(line)
                self._waiting.popleft()
            self.trouble = None
        except OSError as error:
            self.trouble = _disk_error(self._path, error)
            if self._torn:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._end)
                    self._torn = False

    def _open_again(self) -> bool:
        """Go on in the file that has the name now; whether nothing waits any more.

        The file is opened first and the owner looked at then: who takes the run over after that replaces the
        file that was opened here.
        """
        try:
            file = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        except OSError as error:
            self.trouble = _disk_error(self._path, error)
            return False
        is_owner = self._is_owner()
        with self._lock:
            if self._closed or not is_owner:
                os.close(file)
                return False
            os.close(self._file)
            self._file = file
            try:
                self._end = _cut_torn_line(file)
            except OSError as error:
                self.trouble = _disk_error(self._path, error)
                return False
            if not self._end:
                self._waiting.appendleft(_header())
            self._write_waiting()
            return self.trouble is None


def read_journal(directory: Path) -> Iterator[Event]:
    """The events of a run, oldest first. Never raises for what a line holds; a torn line is the end."""
    try:
        file = os.fdopen(open_regular(directory / NAME), "rb")
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
        return event_of(record) if isinstance(record, dict) else None
    except (ValueError, RecursionError):
        return None


def version_of(directory: Path) -> int | None:
    """The version of a run's journal; None where it does not tell."""
    try:
        with os.fdopen(open_regular(directory / NAME), "rb") as file:
            header = json.loads(file.readline(_LONGEST_HEADER))
        return int(header["version"]) if header["event"] == HEADER else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _open_copy(path: Path) -> int:
    """Open the journal for appending, replaced by a copy of itself if there is one.

    Where there is no room for the copy, the file itself is opened.

    Raises:
        OSError: It can't be opened.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    fresh = partial_path(path)
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as old:
            write_synced(fresh, iter(lambda: old.read(_BLOCK), b""))
        file = os.open(fresh, flags)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return open_regular(path, flags | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fresh.replace(path)
    except OSError:
        os.close(file)
        raise
    return file


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


def _header() -> bytes:
    return _line({"event": HEADER, "time": round(time.time(), 3), "step": 0, "version": SCHEMA_VERSION})


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _changed(path: Path) -> DiskError:
    return DiskError(
        f"{path}: another program has replaced or changed it",
        hint="don't change it while the run is training",
    )


def _disk_error(path: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{path}: {error.strerror}", hint="free disk space, or choose another disk with --runs-dir"
    )
