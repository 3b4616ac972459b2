"""index.json: the view of a run at a position of its journal, so that readers don't need all of it.

Two lines of JSON. The first has the number of journal bytes that the second covers, with the sha256 of the
last of these bytes and of the second line; the second is the view of the run at that position, of constant
size for a run of any length. A reader reads both lines and the rest of the journal.

It can be deleted at any time: a missing or damaged index, or one of another version or journal, is rebuilt
from the journal.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mptui.errors import RunDirectoryError
from mptui.io.atomic import Guard, replace_file
from mptui.regular import open_regular, read_regular
from mptui.runs.store import journal
from mptui.runs.store.journal_reader import read_events
from mptui.runs.view.run_view import RunView
from mptui.runs.view.serialize import from_document, to_document

NAME = "index.json"
VERSION = 1

LARGEST = 64 << 20
"""Largest size of an index."""

CHECKED = 1 << 12
"""Last bytes of the covered journal, whose hash identifies it."""


class Index:
    """Updates the index of the run that this process owns.

    It handles only events read from the journal, so it always matches a number of bytes. Thread-safe.

    Args:
        run: The run's directory.
        guard: Context around each change of the file.
    """

    def __init__(self, run: Path, guard: Guard = contextlib.nullcontext) -> None:
        self._run, self._guard = run, guard
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._position = self._written = 0

    def renew(self) -> None:
        """Read new events of the journal and write the index if there are any; failures are retried later."""
        with self._lock, contextlib.suppress(OSError, RunDirectoryError):
            if self._view is None:
                self._view, self._position = read_index(self._run)
                self._written = self._position
            for position in fold_on(self._run, self._view, self._position):
                self._position = position
            if self._position != self._written:
                _write(self._run, self._view, self._position, self._guard)
                self._written = self._position


def read_index(run: Path) -> tuple[RunView, int]:
    """Return the view in the index of a run, and the position in the journal to continue from.

    Returns an empty view and 0 if there is no usable index.
    """
    try:
        header, body = _lines(run)
        position = header["journal"]
        if (
            header["version"] == VERSION
            and type(position) is int
            and header["check"] == _check(run, position)
        ):
            return from_document(body), position
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return RunView(), 0


def read_run(run: Path) -> RunView:
    """Return the current view of a run, from its index and the rest of the journal.

    Raises:
        OSError: There is no readable journal.
    """
    view, position = read_index(run)
    for _ in fold_on(run, view, position):
        pass
    return view


def fold_on(run: Path, view: RunView, position: int) -> Iterator[int]:
    """Handle the events of the journal from byte `position`, some at a time; yield the position after them.

    Raises:
        OSError: The journal can't be read.
    """
    for after, events in read_events(run / journal.NAME, position):
        for event in events:
            view.handle(event)
        yield after


def _lines(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read header and body of the index.

    Raises:
        OSError: It is missing.
        ValueError: It is damaged.
    """
    first, _, second = read_regular(run / NAME, LARGEST).partition(b"\n")
    header = json.loads(first)
    if header["sha256"] != hashlib.sha256(second).hexdigest():
        raise ValueError("damaged")
    return header, json.loads(second)


def _write(run: Path, view: RunView, position: int, guard: Guard) -> None:
    body = json.dumps(to_document(view), separators=(",", ":"), allow_nan=False).encode()
    header = {
        "version": VERSION,
        "journal": position,
        "check": _check(run, position),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    replace_file(run / NAME, json.dumps(header).encode() + b"\n" + body, guard)


def _check(run: Path, position: int) -> str:
    """Return the sha256 of the last journal bytes before `position`.

    Raises:
        OSError: The journal can't be read.
        ValueError: It is shorter.
    """
    size = min(position, CHECKED)
    file = open_regular(run / journal.NAME)
    try:
        data = os.pread(file, size, position - size)
    finally:
        os.close(file)
    if len(data) != size:
        raise ValueError("another journal")
    return hashlib.sha256(data).hexdigest()
