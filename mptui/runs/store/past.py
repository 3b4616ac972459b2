"""The view of a run at an earlier moment, from the lines of its journal around it."""

import io
import os
import re
from copy import deepcopy
from pathlib import Path

from mptui.io.files import open_regular
from mptui.runs.store import journal
from mptui.runs.view.history import History, RunMoment
from mptui.runs.view.run_view import RunView
from mptui.runs.view.specs import EVENTS
from mptui.runs.view.words import GRADIENT_NORM

# Finds the lines of a journal around a moment, without reading the rest of it
# ----------------------------------------------------------------------------

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


# The view of a run at an earlier moment
# --------------------------------------
# Curves and timeline are those of the view now. What panels and log show comes from the events before the
# moment: all rare ones of the last megabytes of the journal, and the latest of those that come all the
# time.

SEARCHED = 4 << 20
"""Bytes of the journal before the moment: a thousand seconds or more."""

_FIRST = 1 << 18
_RARE = 200
"""Largest number of rare events; of each kind that comes all the time, the latest is read."""

_OFTEN = tuple(f'{{"event":"{kind}",'.encode() for kind, spec in EVENTS.items() if not spec.shown_at_once)
_START = b'{"event":"run_started",'


def folded_until(run: Path | None, moment: RunMoment) -> RunView:
    """Return what the journal says of a moment.

    Args:
        run: The run directory; None if there is none yet.
        moment: The moment.
    """
    past = RunView()
    try:
        lines = [] if run is None else _lines(run / journal.NAME, moment.time)
    except OSError:
        lines = []
    for line in lines:
        if (event := journal.parsed(line)) is not None:
            past.handle(event)
    return past


def completed(past: RunView, now: RunView, moment: RunMoment) -> RunView:
    """Add to the view of a moment what the current view knows of it."""
    past.started = past.started or now.started
    past.precision, past.profile = now.timeline.settings_at(moment)
    if not past.log:
        past.log.extend(line for line in now.log if line.time <= moment.time)
    past.timeline = now.timeline
    past.by_epoch = now.by_epoch
    past.best = now.best
    past.histories = {**now.histories, **_trends(now, moment.step)}
    past.step = moment.step
    past.time = moment.time
    past.is_beating, past.is_past = False, True
    past.epochs = past.epochs or now.epochs
    return past


def _lines(path: Path, time: float) -> list[bytes]:
    """Return the lines that make the view at `time`, the oldest first."""
    complete, lines = lines_until(path, time, SEARCHED)
    rare = [number for number, line in enumerate(lines) if not line.startswith(_OFTEN)][-_RARE:]
    often = [place for prefix in _OFTEN if (place := _last(lines, prefix)) is not None]
    kept = [lines[number] for number in sorted({*rare, *often})]
    if complete or any(line.startswith(_START) for line in kept):
        return kept
    beginning = first_lines(path, _FIRST)
    return [line for line in beginning if line.startswith(_START)][:1] + kept


def _last(lines: list[bytes], prefix: bytes) -> int | None:
    """Return the place of the last line with this beginning; None without one."""
    places = range(len(lines) - 1, -1, -1)
    return next((number for number in places if lines[number].startswith(prefix)), None)


def _trends(now: RunView, step: int) -> dict[str, dict[str, History]]:
    """Return the histories that a panel shows the end of, up to `step`."""
    group = {}
    for name, history in now.histories.get(GRADIENT_NORM, {}).items():
        group[name] = deepcopy(history)
        group[name].forget_after(step)
    return {GRADIENT_NORM: group} if group else {}
