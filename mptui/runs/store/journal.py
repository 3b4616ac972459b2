"""events.jsonl: the events of a run, one per line, append-only.

Each event is one `write()` of one line. A process that dies during a write leaves a torn last line: readers
treat it as the end of the file, and the next writer removes it.

While the disk is full or missing, events are kept in memory and written in order later.

A process that takes a run over replaces the file by a copy, so that a former owner that was suspended during
a write appends to the old, now unnamed file.
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
from mptui.io.disk_hint import disk_hint
from mptui.io.line_file import cut_torn_line
from mptui.regular import open_regular
from mptui.runs.view.events.event_registry import event_of

NAME = "events.jsonl"


HEADER = "journal"
"""The `event` of the first line, which isn't an event but has the version of the journal."""

_LONGEST_HEADER = 4096
_CHANGED = "another program has replaced or changed it"
_BLOCK = 1 << 20

MOST_WAITING = 100_000
"""Largest number of events kept in memory: some 30 MB, or hours of a run; older ones are dropped."""


class Journal:
    """Appends events to a run's journal. One process writes; its threads may share it.

    Args:
        directory: The run's directory.
        is_owner: Returns whether this process still owns the run. Called without the journal's lock, before
            events are written to a file that was changed by others.

    Attributes:
        trouble: The error while events are kept in memory; None if there is none.
        lost: Number of events dropped from memory.
        changed: What another program has changed in the file, until `take_changed`; "" if nothing.

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
        self.changed = ""
        try:
            self._file = _open_copy(self._path)
            self._end = cut_torn_line(self._file)
        except OSError as error:
            raise _disk_error(self._path, error) from error
        if not self._end:
            self._append(_header())

    def write(self, event: Event) -> None:
        """Append an event, or keep it until the disk is writable; after `close` it is dropped."""
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
        """Write kept events if the disk is writable; return whether none are left.

        A file that another program has replaced or changed is opened again, and the events are appended to
        it.
        """
        with self._lock:
            if self.trouble is None or self._closed:
                return self.trouble is None
            if self._torn or self._can_go_on():
                self._write_waiting()
                return self.trouble is None
        return self._open_again()

    def untouched(self) -> bool:
        """Whether it ends where this process left it, so that no other has written to it."""
        with self._lock:
            return not self._closed and self._can_go_on()

    def take_changed(self) -> str:
        """Return `changed`, once."""
        with self._lock:
            changed, self.changed = self.changed, ""
        return changed

    def abandon(self) -> None:
        """Drop kept events, as another process owns the file."""
        with self._lock:
            self._waiting.clear()
            self.trouble = None

    @property
    def waiting(self) -> int:
        """Number of kept events."""
        return len(self._waiting)

    def close(self) -> None:
        """Close the file."""
        self.retry()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def _is_as_left(self) -> bool:
        """Whether the file of this name is the open one, with the length that this process left.

        Raises:
            OSError: It is missing, or the disk is.
        """
        mine, named = os.fstat(self._file), os.stat(self._path)  # noqa: PTH116 - for each event, and faster
        return os.path.samestat(mine, named) and mine.st_size == self._end

    def _can_go_on(self) -> bool:
        """Like `_is_as_left`; also False if the file is missing."""
        try:
            return self._is_as_left()
        except OSError:
            return False

    def _write_waiting(self) -> None:
        try:
            if self._torn:  # a failed write left part of a line
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
        """Continue in the file that now has the journal's name; return whether no events are left.

        The file is opened before the owner is checked: a process that takes the run over later replaces the
        opened file.
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
            self._file, before = file, self._end
            try:
                self._end = cut_torn_line(file)
                self.changed = _difference(before, self._end)
            except OSError as error:
                self.trouble = _disk_error(self._path, error)
                return False
            if not self._end:
                self._waiting.appendleft(_header())
            self._write_waiting()
            return self.trouble is None


def length(directory: Path) -> int:
    """Return the length of the journal in bytes; 0 if it is unreadable."""
    try:
        return os.stat(directory / NAME).st_size  # noqa: PTH116 - for each event, and twice as fast
    except OSError:
        return 0


def read_journal(directory: Path) -> Iterator[Event]:
    """Yield the events of a run, oldest first. Invalid lines are skipped; a torn line is the end."""
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
    """Return the event of a line of a journal; None if it isn't one."""
    try:
        record = json.loads(line)
        return event_of(record) if isinstance(record, dict) else None
    except (ValueError, RecursionError):
        return None


def version_of(directory: Path) -> int | None:
    """Return the version of a run's journal; None if it has none."""
    try:
        with os.fdopen(open_regular(directory / NAME), "rb") as file:
            header = json.loads(file.readline(_LONGEST_HEADER))
        return int(header["version"]) if header["event"] == HEADER else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _open_copy(path: Path) -> int:
    """Open the journal for appending, after replacing an existing one by a copy.

    If there is no space for the copy, the file itself is opened.

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


def _header() -> bytes:
    return _line({"event": HEADER, "time": round(time.time(), 3), "step": 0, "version": SCHEMA_VERSION})


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _difference(before: int, after: int) -> str:
    """Describe a journal of `after` bytes in the place of one of `before` bytes."""
    if not after:
        return "another program has removed or emptied it: all earlier events are lost"
    size = f"{abs(after - before):,} bytes {'fewer' if after < before else 'more'}"
    return f"{_CHANGED}: it has {size if after != before else 'the same length'}"


def _changed(path: Path) -> DiskError:
    return DiskError(
        f"{path}: {_CHANGED}",
        hint="don't change it while the run is training",
    )


def _disk_error(path: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{path}: {error.strerror}", hint=disk_hint(error, path, "choose another disk with --runs-dir")
    )
