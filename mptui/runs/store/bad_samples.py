"""bad_samples.json: the files that a run leaves out, with reasons."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mptui.data.core.types import Problem
from mptui.errors import MptuiError
from mptui.io.atomic import Guard
from mptui.regular import read_regular
from mptui.runs.store.directory import LARGEST, write_json
from mptui.text import clean

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

    def note(self, problems: Sequence[Problem], warn: Callable[[str, str], None]) -> None:
        """Add and write the files that a scan left out, and warn of them by `warn(code, message)`."""
        self.add(problems)
        self.write()
        if problems:
            names = ", ".join(clean(f"{p.path} ({p.reason})") for p in problems[:5])
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            warn("bad_samples", f"left out {len(problems)} files: {names}{more}; see {NAME}")

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
