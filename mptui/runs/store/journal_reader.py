"""Reads a journal of any length in about a second: all rare events, and steps in about a thousand blocks.

A screen has room for some hundred points, and a week of training has a million events. So a long range is
divided into blocks; the steps of each block are merged to one `Step` with the smallest and the largest loss.
Only the last device sample is returned, and no progress; of other kinds all events are returned, or some if
there are many. The end of the journal is read line by line.

Lines are found and distinguished by byte patterns in numpy; few of them are parsed.
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mptui.events import Event, Step
from mptui.regular import open_regular
from mptui.runs.store.journal import parsed
from mptui.runs.view.events.event_registry import EVENTS

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


def read_events(path: Path, start: int, end: int | None = None) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events between two byte positions of a journal, oldest first, some at a time.

    `start` is the beginning of a line; without `end` all complete lines are read. The position after the
    events is yielded with them. A long range is thinned as described above; invalid lines are skipped.

    Raises:
        OSError: The file can't be read.
    """
    with io.FileIO(open_regular(path)) as file:
        if end is None:
            end = file.seek(0, io.SEEK_END)
        if end - start > WHOLE:
            for position, events in _in_blocks(file, start, end - WHOLE):
                start = position
                yield position, events
        yield from _line_by_line(file, start, end)


def events_between(path: Path, start: int, end: int) -> list[Event]:
    """Return what `read_events` yields.

    Raises:
        OSError: The file can't be read.
    """
    return [event for _, events in read_events(path, start, end) for event in events]


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
        self._block, self._kinds = block, kinds
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
            kept[int(lines[-1])] = _merged(last, len(lines), low, high, means, broken)
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


def _merged(last: Step, count: int, low: float, high: float, means: list[float], broken: int) -> Step:
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
