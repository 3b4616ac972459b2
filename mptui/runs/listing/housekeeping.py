"""Renames and deletes runs that have ended, and removes the checkpoints that nobody will need."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mptui.engine.checkpoint.pointers import target_of
from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.io.marker import RUN_MARKER, is_checkpoint
from mptui.runs.listing.own_files import is_of_checkpoints, remove_entry, remove_own
from mptui.runs.store.directory import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    SUMMARY,
    check_name,
    claim,
    is_trained,
    read_json,
    write_json,
)
from mptui.runs.store.lock import NAME as LOCK
from mptui.runs.store.lock import PRIVATE
from mptui.text import shell_word


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is in a folder of checkpoints besides `last` and `best`.

    Attributes:
        paths: Checkpoints, names of them and half-written ones: what a clean-up removes.
        checkpoints: The number of checkpoints in it.
        size_bytes: Bytes that their removal frees.
        others: The files of others, relative to the run's folder, which stay.
    """

    paths: tuple[Path, ...]
    checkpoints: int
    size_bytes: int
    others: tuple[str, ...]


def rename_run(run: Path, name: str) -> Path:
    """Give a run another name, and return its new directory.

    Raises:
        ConfigError: The name is not valid, or another run has it.
        RunDirectoryError: A process trains the run.
        DiskError: The disk is not writable.
    """
    check_name(name)
    new = run.with_name(name)
    if name == run.name:
        return run
    if os.path.lexists(new):
        raise ConfigError(f"{new}: there is such a directory already", hint="choose another name")
    with _owned(run):
        run.rename(new)
        (new / LOCK).unlink(missing_ok=True)  # ours, which `release` looks for under the old name
        summary = read_json(new / SUMMARY)
        if summary:
            write_json(new / SUMMARY, summary | {"run": name, "directory": str(new)})
    return new


def delete_run(run: Path) -> tuple[str, ...]:
    """Delete all that a run has written; `run.toml` goes last, so that this can be repeated if interrupted.

    Returns:
        The files of others in it, relative to its folder, which stay; without any the folder goes, too.

    Raises:
        RunDirectoryError: A process trains the run.
        DiskError: The disk is not writable.
    """
    with _owned(run):
        others = remove_own(run)
        for name in (CONFIG, RUN_MARKER):
            (run / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (run / PRIVATE).unlink(missing_ok=True)
        run.rmdir()
    return others


def find_leftovers(run: Path) -> Leftovers:
    """Find what a clean-up of the checkpoints removes; bytes that another run shares are not counted.

    Raises:
        DiskError: The folder can't be read.
    """
    folder = run / CHECKPOINTS
    try:
        kept = {path.name for name in (LAST, BEST) if (path := target_of(folder, name)) is not None}
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        # without `last` nobody knows which checkpoint a resume needs
        olds = [path for path in entries if kept and path.name not in {*kept, LAST, BEST}]
        paths = [path for path in olds if is_of_checkpoints(path)]
        size = sum(_freed(file) for path in paths for file in _files(path))
    except OSError as error:
        raise _unusable(folder, error) from error
    others = tuple(f"{CHECKPOINTS}/{path.name}" for path in olds if path not in paths)
    return Leftovers(tuple(paths), sum(map(is_checkpoint, paths)), size, others)


def remove_leftovers(run: Path) -> tuple[str, ...]:
    """Remove all checkpoints except for `last` and `best`.

    Returns:
        The files of others beside them, relative to the run's folder, which stay.

    Raises:
        RunDirectoryError: A process trains the run.
        DiskError: The disk is not writable.
    """
    with _owned(run):
        for path in find_leftovers(run).paths:
            remove_entry(path)
    return find_leftovers(run).others


@contextlib.contextmanager
def _owned(run: Path) -> Iterator[None]:
    """Own the run during the body, so that no process begins to train it."""
    if is_trained(run):  # also by this process, which could claim it again
        raise RunDirectoryError(
            f"{run}: this run is training", hint=f"stop it first: mptui stop {shell_word(run)}"
        )
    claimed = claim(run)
    try:
        yield
    except OSError as error:
        raise _unusable(run, error) from error
    finally:
        claimed.release()


def _unusable(path: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{path}: {error.strerror or error}", hint="check the permissions of the folder of the runs"
    )


def _files(path: Path) -> Iterator[Path]:
    yield from path.rglob("*") if path.is_dir() and not path.is_symlink() else ()


def _freed(file: Path) -> int:
    """Return the bytes that the removal of a file frees: none for one that has another name, too."""
    status = file.lstat()
    return status.st_size if status.st_nlink == 1 and file.is_file() else 0
