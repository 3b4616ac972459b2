"""index.json: what the journal has come to, so that nobody has to read the whole of it.

Two lines of JSON. The first says for how many bytes of the journal the second stands, with the sha256 of the
last of them and of the second line; the second is all that a screen knows of the run by then, of constant
size however long the run is. Who wants to know how a run stands reads these and the rest of the journal.

It can be thrown away at any time: one that is missing, damaged, of another version or of another journal
counts as none, and is made again from the journal.
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
"""A larger file is no index of ours."""

CHECKED = 1 << 12
"""Bytes of the journal, up to where the index stands for it, by which it is known again."""


class Index:
    """Keeps the index of the run that this process owns.

    It folds what is in the journal, not what is on its way there: so it stands for a number of bytes,
    whatever becomes of the disk. Any of the process's threads may ask it to be renewed.

    Args:
        run: The run's directory.
        guard: Entered around each change of the file.
    """

    def __init__(self, run: Path, guard: Guard = contextlib.nullcontext) -> None:
        self._run, self._guard = run, guard
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._position = self._written = 0

    def renew(self) -> None:
        """Read the journal on, and write the index anew if there was anything; what fails is for later."""
        with self._lock, contextlib.suppress(OSError, RunDirectoryError):
            if self._view is None:
                self._view, self._position = read_index(self._run)
                self._written = self._position
            for position in _fold_on(self._run, self._view, self._position):
                self._position = position
            if self._position != self._written:
                _write(self._run, self._view, self._position, self._guard)
                self._written = self._position


def read_index(run: Path) -> tuple[RunView, int]:
    """What a run had come to when its index was written, and the byte of the journal to go on from.

    A new view and 0 where there is no index that can be used.
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
    """What a run has come to by now: its index, and what the journal says beyond it.

    Raises:
        OSError: There is no journal that can be read.
    """
    view, position = read_index(run)
    for _ in _fold_on(run, view, position):
        pass
    return view


def _fold_on(run: Path, view: RunView, position: int) -> Iterator[int]:
    """Fold what the journal says from byte `position` on, some at a time; yields the position after it.

    Raises:
        OSError: The journal can't be read.
    """
    for after, events in read_events(run / journal.NAME, position):
        for event in events:
            view.handle(event)
        yield after


def _lines(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and body of the index.

    Raises:
        OSError: There is none.
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
    """The sha256 of the bytes of the journal before `position`.

    Raises:
        OSError: The journal can't be read.
        ValueError: It has not so many bytes.
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
