"""trackers.json: how far each tracker has got in the journal of a run, and what it needs to go on there."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from mptui.io.atomic import replace_file
from mptui.registry.tracker import Kept
from mptui.regular import open_regular
from mptui.runs.store.directory import read_json
from mptui.runs.store.journal import NAME as JOURNAL

NAME = "trackers.json"
LOCK = "trackers.lock"
VERSION = 2

_LONGEST_LINE = 4096
_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}")


class TrackerState:
    """The state of all trackers of a run. Any thread may call its methods.

    Args:
        run: The run directory; this process holds its `feeding_lock`.
    """

    def __init__(self, run: Path) -> None:
        self._path, self._lock = run / NAME, threading.Lock()
        trackers = read_json(self._path).get("trackers")
        self._trackers: dict[str, Kept] = {
            name: kept
            for name, kept in (trackers.items() if isinstance(trackers, dict) else ())
            if isinstance(kept, dict)
        }

    def of(self, name: str) -> Kept:
        """Return a copy of what a tracker has kept, with a valid `position` and `id`."""
        kept = dict(self._trackers.get(name, {}))
        position, known = kept.get("position"), kept.get("id")
        kept["position"] = position if isinstance(position, int) and position > 0 else 0
        kept["id"] = known if isinstance(known, str) and _ID.fullmatch(known) else token_of(self._path.parent)
        return kept

    def store(self, name: str, kept: Kept) -> None:
        """Replace what a tracker has kept.

        Raises:
            OSError: The disk is full or not writable.
        """
        with self._lock:
            self._trackers[name] = dict(kept)
            document = {"version": VERSION, "trackers": self._trackers}
            replace_file(self._path, json.dumps(document).encode())


def token_of(run: Path) -> str:
    """Return an ID for the run at a tracker: its name, and eight digits of the first line of its journal.

    The line has the time at which the run began, so that it is the same after each resume, and runs of the
    same name have different ones.

    Raises:
        OSError: The journal can't be read.
    """
    with os.fdopen(open_regular(run / JOURNAL), "rb") as file:
        first = file.readline(_LONGEST_LINE)
    name = run.resolve().name
    return f"{name[:64]}-{hashlib.sha256(name.encode() + first).hexdigest()[:8]}"


@contextlib.contextmanager
def feeding_lock(run: Path) -> Iterator[bool]:
    """Let one process at a time feed the trackers of a run; yields whether it is this one.

    The kernel releases the lock when the process ends, however it ends.

    Raises:
        OSError: The run directory can't be written.
    """
    file = open_regular(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
    finally:
        os.close(file)
