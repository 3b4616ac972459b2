"""Events.jsonl: append, and read on from a position."""

import contextlib
import errno
import io
import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mptui.errors import DiskError
from mptui.events import SCHEMA_VERSION, Event, Step, json_line, to_record
from mptui.io.files import cut_torn_line, open_regular, partial_path, write_synced
from mptui.io.written_files import disk_hint
from mptui.runs.view.specs import EVENTS, event_of

# events.jsonl: the events of a run, one per line, append-only
# ------------------------------------------------------------
# Each event is one `write()` of one line. A process that dies during a write leaves a torn last line:
# readers treat it as the end of the file, and the next writer removes it.
#
# While the disk is full or missing, events are kept in memory and written in order later.
#
# A process that takes a run over replaces the file by a copy, so that a former owner that was suspended
# during a write appends to the old, now unnamed file.

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
        position: Length of the file in bytes once all events are in it, also those kept in memory.

    Raises:
        DiskError: It can't be opened or repaired.
    """

    def __init__(self, directory: Path, is_owner: Callable[[], bool] = lambda: True) -> None:
        self._path = directory / NAME
        self._is_owner = is_owner
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
            raise _disk_error(self._path, error, "choose another disk with --runs-dir") from error
        self.position = self._end
        if not self._end:
            self._append(_header())

    @property
    def written(self) -> int:
        """Length of the file in bytes without the kept events."""
        return self._end

    def write(self, event: Event) -> None:
        """Append an event, or keep it until the disk is writable; after `close` it is dropped."""
        self._append(json_line(to_record(event)))

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            self._waiting.append(line)
            self.position += len(line)
            if len(self._waiting) > MOST_WAITING:
                self.position -= len(self._waiting.popleft())
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
            self.position = self._end
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
            self.position = self._end + sum(map(len, self._waiting))
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
    return json_line({"event": HEADER, "time": round(time.time(), 3), "step": 0, "version": SCHEMA_VERSION})


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


def _disk_error(path: Path, error: OSError, otherwise: str = "") -> DiskError:
    return DiskError(f"{error.strerror}: {path}", hint=disk_hint(error, path, otherwise))


# Reads a journal of any length in about a second: all rare events, and steps in about a thousand blocks
# ------------------------------------------------------------------------------------------------------
# A screen has room for some hundred points, and a week of training has a million events. So a long range is
# divided into blocks; the steps of each block are merged to one `Step` with the smallest and the largest
# loss. Only the last device sample is returned, and no progress; of other kinds all events are returned, or
# some if there are many. The end of the journal is read line by line.
#
# Lines are found and distinguished by byte patterns in numpy; few of them are parsed.

WHOLE = 1 << 19
"""Bytes of a journal, or of its end, that are read line by line."""

BLOCKS = 1024
LONGEST_LINE = 8 << 20
"""Longer lines aren't events and are skipped."""

RARE = 64
"""Number of events of each other kind returned from the start; after these, `OFTEN` per block."""

OFTEN = 1

SAMPLED = 8
"""Number of steps whose losses give the mean of a block."""

_CHUNK = 1 << 16
_SMALLEST_BLOCK = 1 << 12
_PAD = 512
"""Padding after a block in bytes, so that reads at the end of its last line stay inside."""

_HEAD = len('{"event":"')
_ROW, _VALUE = 256, 32
_QUOTE, _COMMA, _DOT, _E, _UNDERSCORE, _ZERO, _NEWLINE = (ord(c) for c in '",.e_0\n')

Words = NDArray[np.uint64]
Places = NDArray[np.intp]


def _word(text: str) -> np.uint64:
    """Return eight characters as one number."""
    return np.uint64(int.from_bytes(text.encode(), "little"))


_OURS = _word('{"event"')
_STEP = _word('step","t')
_LOWEST, _HIGHEST, _NONFINITE = _word("loss_min"), _word("loss_max"), _word("nonfinit")


def read_events(
    path: Path, start: int, end: int | None = None, *, whole: int | None = None
) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events between two byte positions of a journal, oldest first, some at a time.

    `start` is the beginning of a line; without `end` all complete lines are read. The position after the
    events is yielded with them. Of a range longer than `whole` bytes, or `WHOLE`, all but the end is thinned
    as described above; invalid lines are skipped.

    Raises:
        OSError: The file can't be read.
    """
    with io.FileIO(open_regular(path)) as file:
        if end is None:
            end = file.seek(0, io.SEEK_END)
        whole = whole or WHOLE
        if end - start > whole:
            for position, events in _in_blocks(file, start, end - whole):
                start = position
                yield position, events
        yield from _line_by_line(file, start, end)


def _line_by_line(file: io.FileIO, start: int, end: int) -> Iterator[tuple[int, list[Event]]]:
    file.seek(start)
    rest = b""
    position = start
    while position + len(rest) < end:
        data = file.read(min(_CHUNK, end - position - len(rest)))
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        position += sum(len(line) + 1 for line in lines)
        if len(rest) > LONGEST_LINE:
            position, rest = position + len(rest), b""
        if lines:
            yield position, [event for line in lines if (event := parsed(line)) is not None]


def _in_blocks(file: io.FileIO, start: int, end: int) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events of each block, up to the last complete line before `end`."""
    size = max(_SMALLEST_BLOCK, (end - start) // BLOCKS)
    block = np.zeros(size + _PAD, np.uint8)
    kinds = _Kinds()
    while start < end:
        file.seek(start)
        filled = file.readinto(block.data[: min(size, end - start)])
        if not filled:
            break
        newlines = np.flatnonzero(block[:filled] == _NEWLINE)
        if newlines.size:
            start += int(newlines[-1]) + 1
            yield start, _Block(block, newlines, kinds).events()
        elif start + filled >= end:
            break
        elif size < LONGEST_LINE:
            size *= 2
            block = np.zeros(size + _PAD, np.uint8)
        else:
            start += filled
    yield start, [event for line in kinds.last.values() if (event := parsed(line)) is not None]


class _Kinds:
    """Thinning of each kind of event, by the tag of the kind: the first 8 bytes of its name.

    Attributes:
        seen: Number of events of each kind in the blocks so far.
        last: The last line of each kind that is thinned to the last event.
    """

    def __init__(self) -> None:
        self._thinned = {int(_word(f'{kind}","t'[:8])): spec.thinned for kind, spec in EVENTS.items()}
        self.seen: Counter[int] = Counter()
        self.last: dict[int, bytes] = {}

    def thinned(self, tag: int) -> str:
        return self._thinned.get(tag, "some")


class _Block:
    """Some complete lines of a journal.

    Args:
        block: Their bytes, and at least `_PAD` more.
        newlines: Position of the line break of each.
        kinds: Thinning by kind; updated.
    """

    def __init__(self, block: NDArray[np.uint8], newlines: Places, kinds: _Kinds) -> None:
        self._block = block
        self._kinds = kinds
        self._ends = newlines
        self._starts = np.concatenate([[0], newlines[:-1] + 1])
        self._words: Words = np.ndarray((len(block) - 8,), "<u8", buffer=block, strides=(1,))

    def events(self) -> list[Event]:
        """Return the thinned events of the block, in order."""
        ours = self._words[self._starts] == _OURS
        tags = np.where(ours, self._words[self._starts + _HEAD], np.uint64(0))
        kept: dict[int, Event] = {}
        rest = np.ones(len(tags), np.bool_)
        rest[self._keep_steps(np.flatnonzero(tags == _STEP), kept)] = False
        for tag in np.unique(tags[rest]):
            self._keep(int(tag), np.flatnonzero(rest & (tags == tag)), kept)
        return [kept[line] for line in sorted(kept)]

    def _keep(self, tag: int, lines: Places, kept: dict[int, Event]) -> None:
        """Select lines of a kind according to its spec."""
        thinned = self._kinds.thinned(tag)
        if thinned == "last":
            self._kinds.last[tag] = self._line(lines[-1])
        elif thinned == "some":
            most = max(OFTEN, RARE - self._kinds.seen[tag])
            self._kinds.seen[tag] += len(lines)
            for line in _some(lines, most):
                if (event := self._parsed(line)) is not None:
                    kept[int(line)] = event

    def _parsed(self, line: int) -> Event | None:
        return parsed(self._line(line))

    def _line(self, line: int) -> bytes:
        return self._block[self._starts[line] : self._ends[line]].tobytes()

    def _keep_steps(self, lines: Places, kept: dict[int, Event]) -> Places:
        """Merge these steps to one event; return the merged lines, those in the layout of our writer."""
        if not lines.size:
            return lines
        lowest, highest, known = self._losses(lines)
        lines, lowest, highest = lines[known], lowest[known], highest[known]
        if not lines.size:
            return lines
        last = self._parsed(lines[-1])
        if isinstance(last, Step):
            low = self._extreme(lowest, math.inf, np.argmin)
            high = self._extreme(highest, -math.inf, np.argmax)
            means = [self._mean(line) for line in _some(lines, SAMPLED)]
            broken = int(np.count_nonzero(self._are_broken(highest)))
            kept[int(lines[-1])] = _merged(last, len(lines), low, high, means=means, broken=broken)
        return lines

    def _mean(self, line: int) -> float:
        return _number(self._line(line).partition(b'"loss":')[2].partition(b",")[0], math.nan)

    def _losses(self, lines: Places) -> tuple[Places, Places, NDArray[np.bool_]]:
        """Return the offsets of loss_min's and loss_max's values in each line, and whether they are known."""
        starts = self._starts[lines]
        rows = np.ndarray((len(self._block) - _ROW, _ROW), np.uint8, buffer=self._block, strides=(1, 1))[
            starts
        ]
        found = np.flatnonzero(rows == _UNDERSCORE)
        if not found.size:
            return starts, starts, np.zeros(len(starts), np.bool_)
        row = np.arange(len(starts)) * _ROW
        third = np.searchsorted(found, row) + 2  # after epoch_step and samples_seen
        places = [starts - row + found[np.minimum(third + n, len(found) - 1)] for n in (0, 1)]
        inside = [np.clip(place, 4, len(self._words) - _VALUE) for place in places]
        known = (self._words[inside[0] - 4] == _LOWEST) & (self._words[inside[1] - 4] == _HIGHEST)
        return inside[0] + len('_min":'), inside[1] + len('_max":'), known

    def _values(self, places: Places) -> NDArray[np.uint8]:
        """Return the bytes of the number at each position, padded with zeros."""
        rows = np.ndarray((len(self._block) - _VALUE, _VALUE), np.uint8, buffer=self._block, strides=(1, 1))[
            places
        ]
        ends = (rows == _COMMA).argmax(axis=1)
        rows[np.arange(_VALUE) >= ends[:, None]] = 0
        return rows

    def _extreme(
        self, places: Places, missing: float, choose: Callable[[NDArray[np.generic]], np.intp]
    ) -> float:
        """Return the smallest or largest number at these positions; `missing` replaces invalid ones."""
        rows = self._values(places)
        if (rows[:, 1] == _DOT).all() and not (rows == _E).any():
            order = self._words[places].byteswap()  # all are d.dddddd, so that bytes sort like numbers
            return _number(_text(rows[choose(order)]), missing)
        numbers = np.array([_number(_text(row), missing) for row in rows])
        return float(numbers[choose(numbers)])

    def _are_broken(self, highest: Places) -> NDArray[np.bool_]:
        """Return which lines had a non-finite loss: `"nonfinite":` after loss_max is not 0."""
        rows = self._values(highest)
        lengths = (rows == 0).argmax(axis=1)
        names = np.minimum(highest + lengths + len(',"'), len(self._words) - _VALUE)
        counted = self._words[names] == _NONFINITE
        result: NDArray[np.bool_] = ~counted | (self._block[names + len('nonfinite":')] != _ZERO)
        return result


def _some(lines: Places, most: int) -> Places:
    """Return at most `most` of the lines, evenly spaced, including the last."""
    if len(lines) <= most:
        return lines
    return lines[np.linspace(len(lines) - 1, 0, most).astype(np.intp)[::-1]]


def _text(row: NDArray[np.uint8]) -> bytes:
    return row.tobytes().rstrip(b"\0")


def _number(text: bytes, missing: float) -> float:
    try:
        return float(text)
    except ValueError:
        return missing


def _merged(last: Step, count: int, low: float, high: float, *, means: list[float], broken: int) -> Step:
    """Return a step for a block of `count` steps: the last one, with the losses of all."""
    finite = [mean for mean in means if math.isfinite(mean)]
    return replace(
        last,
        steps=last.steps * count,
        loss=sum(finite) / len(finite) if finite else last.loss,
        loss_min=low if math.isfinite(low) else last.loss_min,
        loss_max=high if math.isfinite(high) else last.loss_max,
        nonfinite=broken,
    )
