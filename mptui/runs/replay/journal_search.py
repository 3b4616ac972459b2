"""Finds the lines of a journal around a moment, without reading the rest of it."""

import io
import os
import re
from pathlib import Path

from mptui.regular import open_regular

_CHUNK = 1 << 16
_HEAD = 256
"""More bytes than kind and time of a line have."""

_LINE = re.compile(rb'(?:\A|\n)\{"event":"[^"]*","time":([0-9.]+),')
"""The beginning of a line in the layout of our writer, with its time."""


def lines_until(path: Path, time: float, most: int) -> tuple[bool, list[bytes]]:
    """Return the complete lines up to `time`, of the last `most` bytes before it, the oldest first.

    The first value says whether they are all lines up to `time`. A journal of any length is searched by
    bisection: its lines are in the order of their time.

    Raises:
        OSError: The file can't be read.
    """
    with io.FileIO(open_regular(path)) as file:
        end = _end_of(file, time)
        start = max(0, end - most)
        lines = os.pread(file.fileno(), end - start, start).split(b"\n")[:-1]
    return start == 0, lines if start == 0 else lines[1:]


def first_lines(path: Path, most: int) -> list[bytes]:
    """Return the complete lines in the first `most` bytes.

    Raises:
        OSError: The file can't be read.
    """
    with io.FileIO(open_regular(path)) as file:
        return os.pread(file.fileno(), most, 0).split(b"\n")[:-1]


def _end_of(file: io.FileIO, time: float) -> int:
    """Return the position after the last line up to `time`."""
    low, high = 0, file.seek(0, io.SEEK_END)
    while high - low > _CHUNK:
        middle = (low + high) // 2
        found = _first_line(file, middle, high)
        if found is None or found[1] > time:
            high = middle
        else:
            low = found[0]
    return low + _length_until(os.pread(file.fileno(), _line_end(file, high) - low, low), time)


def _first_line(file: io.FileIO, start: int, end: int) -> tuple[int, float] | None:
    """Return position and time of the first line that begins after `start` and before `end`."""
    size = _CHUNK
    while True:
        match = _LINE.search(os.pread(file.fileno(), size, start), 1)
        if match is not None and start + match.start() + 1 < end:
            return start + match.start() + 1, _number(match[1])
        if match is not None or size >= end - start + _HEAD:
            return None
        size *= 4


def _line_end(file: io.FileIO, position: int) -> int:
    """Return the end of the line at `position`."""
    while chunk := os.pread(file.fileno(), _CHUNK, position):
        newline = chunk.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(chunk)
    return position


def _length_until(data: bytes, time: float) -> int:
    """Return the length of the complete lines at the beginning of `data` that are not later than `time`."""
    length = 0
    for line in data.split(b"\n")[:-1]:
        match = _LINE.match(line)
        if match is not None and _number(match[1]) > time:
            break
        length += len(line) + 1
    return length


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
