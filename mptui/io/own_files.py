"""Tells what mptui has written from all else, and removes that alone."""

import contextlib
import errno
import json
import os
import shutil
from itertools import chain, count
from pathlib import Path
from typing import Any

from mptui.io.files import Guard, is_partial, open_regular, partial_path, read_regular, replace_file

# Tells the folders of runs from all others, before anything in one is written, replaced or removed
# -------------------------------------------------------------------------------------------------
# A run's folder has a marker, a small JSON file with the program's name. Runs of earlier versions have
# none, and a copy may have lost it: these are recognized by a file that only a run has.

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
    return names and names & {*os.listdir(folder)}


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


# Removes what the program has written, and nothing else
# ------------------------------------------------------
# All that is removed or moved out of the way in a run's folder goes through here, beside a file that the
# same call has just made: a checkpoint is what its manifest names, a partial file has a name of
# `partial_path`, and no link is followed. What else lies in a removed folder is kept, under a name that
# tells it.


def remove_checkpoint(path: Path, guard: Guard = contextlib.nullcontext) -> bool:
    """Remove the files of a checkpoint and its folder; other files in it move to `step-000000100.others`.

    The folder is first renamed to a name of this process: so no checkpoint is ever partly removed under its
    own name, and a process stopped in between removes nothing of another one.

    Returns:
        False if the folder is no checkpoint: it is as it was.

    Raises:
        OSError: It can't be renamed.
    """
    if not (own := checkpoint_files(path)):
        return False
    if others := sorted({*os.listdir(path)} - own):
        kept = _unused(path.with_name(f"{path.name}.others"))
        with guard():
            os.mkdir(kept, 0o700)
        for name in others:
            with guard():
                os.rename(path / name, kept / name)
    aside = partial_path(path.with_name("removed"))
    with guard():
        os.rename(path, aside)
    remove_partial(aside)
    return True


def remove_partial(path: Path) -> None:
    """Remove what a process that was killed has left half-written, by its name of `partial_path`.

    Errors are ignored.
    """
    if not is_partial(path.name):
        return
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def set_aside(path: Path, name: str, guard: Guard = contextlib.nullcontext) -> Path:
    """Rename `path` to an unused name beside it, `name` or `name-2`; nothing is replaced.

    Raises:
        OSError: It can't be renamed.
    """
    other = _unused(path.with_name(name))
    with guard():
        os.rename(path, other)
    return other


def _unused(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not os.path.lexists(each))
