"""bad_samples.json: the files that a run leaves out, with reasons."""

import contextlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path

from mptui.data.core.types import Problem
from mptui.errors import MptuiError
from mptui.io.atomic import Guard
from mptui.regular import read_regular
from mptui.runs.store.directory import LARGEST, write_json

NAME = "bad_samples.json"
VERSION = 1


class BadSampleList:
    """The files left out by scan and training, each once, also over resumes.

    Args:
        run: The run's directory.
        guard: Context around each change of the file.
    """

    def __init__(self, run: Path, guard: Guard = contextlib.nullcontext) -> None:
        self._path, self._guard = run / NAME, guard
        self._lock = threading.Lock()
        self._reasons = dict(_read(self._path))
        self._written = True

    def add(self, problems: Iterable[Problem]) -> None:
        """Add files; cheap and thread-safe."""
        with self._lock:
            fresh = {problem.path: problem.reason for problem in problems}
            self._written &= fresh.items() <= self._reasons.items()
            self._reasons |= fresh

    def write(self) -> None:
        """Write the list if it has changed; a failed write is repeated the next time."""
        with self._lock:
            if self._written:
                return
            files = [{"path": path, "reason": reason} for path, reason in sorted(self._reasons.items())]
        with contextlib.suppress(MptuiError):
            write_json(self._path, {"version": VERSION, "files": files}, self._guard)
            self._written = len(files) == len(self._reasons)


def _read(path: Path) -> Iterable[tuple[str, str]]:
    try:
        files = json.loads(read_regular(path, LARGEST))["files"]
        return [(str(file["path"]), str(file["reason"])) for file in files]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
