"""Tells the folders of runs from all others, before anything in one is written, replaced or removed.

A run's folder has a marker, a small JSON file with the program's name. Runs of earlier versions have none,
and a copy may have lost it: these are recognized by a file that only a run has.
"""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from mptui.io.atomic import replace_file
from mptui.regular import open_regular, read_regular

RUN_MARKER = ".mptui-run.json"
"""Name of the marker in a run's folder."""

MANIFEST = "manifest.json"
"""Name of the list of a checkpoint's files with their sha256."""

_PROGRAM = "mptui"
_CONTENT = (json.dumps({"made_by": _PROGRAM}) + "\n").encode()
_LARGEST = 1 << 20
_LONGEST_LINE = 1 << 16
_CHECKPOINTS = "checkpoints"


def make_run(folder: Path) -> None:
    """Make the folder of a new run, for its owner alone, and mark it; if that fails, there is none.

    Raises:
        FileExistsError: There is something of this name.
        OSError: The disk is full or not writable.
    """
    folder.mkdir(mode=0o700)
    try:
        mark_run(folder)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def mark_run(folder: Path) -> None:
    """Mark a new folder as that of a run.

    Raises:
        OSError: The disk is full or not writable.
    """
    replace_file(folder / RUN_MARKER, _CONTENT)


def is_run(folder: Path) -> bool:
    """Whether the folder is that of a run, of this or an earlier version; no link is followed out of it."""
    return _is_marked(folder) or _has_traces(folder)


def make_folder(folder: Path) -> None:
    """Make a folder of a run, for its owner alone, unless it is there.

    Raises:
        NotADirectoryError: A link or a file has its name: what is written would go elsewhere.
        OSError: The disk is full or not writable.
    """
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    folder.mkdir(mode=0o700, exist_ok=True)


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder has a checkpoint's manifest, intact or not; links are none."""
    return bool(_own_names(folder))


def checkpoint_files(folder: Path) -> frozenset[str]:
    """Return the names of a checkpoint's files that are in its folder; empty if it is none, or a link.

    Raises:
        OSError: The folder can't be listed.
    """
    names = _own_names(folder)
    return names and names & {*os.listdir(folder)}  # noqa: PTH208 - the names alone


def _own_names(folder: Path) -> frozenset[str]:
    """Return the names of the files that a checkpoint's manifest lists, and its own; empty without one."""
    manifest = {} if folder.is_symlink() else _document(folder / MANIFEST)
    files = manifest.get("files")
    if not isinstance(files, dict) or not {"version", "sha256"} <= manifest.keys():
        return frozenset()
    return frozenset({*files, MANIFEST})


def _is_marked(folder: Path) -> bool:
    return _document(folder / RUN_MARKER).get("made_by") == _PROGRAM


def _has_traces(folder: Path) -> bool:
    """Whether there is a journal, a record of the environment or a checkpoint as runs write them."""
    if _PROGRAM in _document(folder / "environment.json") or _begins_as_journal(folder / "events.jsonl"):
        return True
    try:
        with os.scandir(folder / _CHECKPOINTS) as entries:
            return any(
                entry.is_dir(follow_symlinks=False) and is_checkpoint(Path(entry)) for entry in entries
            )
    except OSError:
        return False


def _begins_as_journal(path: Path) -> bool:
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            first = json.loads(file.readline(_LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"event", "time", "step"} <= first.keys()


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a regular file; empty if there is none."""
    try:
        document = json.loads(read_regular(path, _LARGEST, os.O_NOFOLLOW))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
