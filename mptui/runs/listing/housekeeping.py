"""Renames and deletes runs that have ended, and frees disk; what others put into a run's folder stays."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mptui.engine.checkpoint.pointers import target_of
from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.io.files import is_partial
from mptui.io.own_files import RUN_MARKER, is_checkpoint, remove_checkpoint, remove_partial
from mptui.runs.store import pictures
from mptui.runs.store.directory import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    RANKS,
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

# Renames and deletes runs that have ended, and removes the checkpoints that nobody will need
# -------------------------------------------------------------------------------------------


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


# Removes what a run has written into its folder; what others have put there stays
# --------------------------------------------------------------------------------
# A file is a run's by its full name at its place, a checkpoint by its manifest, a picture by its text or
# its record. No link is followed.

_FILES = frozenset(
    {
        *("environment.json", "data.json", "choices.json", "changes.json", "summary.json", "trackers.json"),
        *("events.jsonl", "index.json", "bad_samples.json", "divergence.json", "control.sock"),
        *("train.log", "console.log", "trackers.log", "trackers.lock", "device.csv", "metrics.csv"),
        *("best_classes.csv", "best_confusion.csv", "traceback.txt", "stacks.txt"),
    }
)
_RANK_FILE = re.compile(rf"\d+(\.before)?\.(log|out)|{re.escape(PRIVATE)}|{re.escape(LOCK)}")
_TENSORBOARD_FILE = re.compile(r"events\.out\.tfevents\.[0-9]{1,12}\.[A-Za-z0-9._+-]{1,128}")
_KEPT_TO_THE_END = (CONFIG, RUN_MARKER, LOCK, PRIVATE)


def remove_own(run: Path) -> tuple[str, ...]:
    """Remove all that a run has written, except for its settings, its marker and its lock.

    Returns:
        What stays besides: the files of others, relative to the run's folder.

    Raises:
        OSError: A file can't be removed.
    """
    for path in sorted(run.iterdir()):
        if not _is_folder_of_run(path):
            _remove([path], _is_file_of_run)
            continue
        _remove(path.iterdir(), _FOLDERS[path.name])
        with contextlib.suppress(OSError):  # others' files are in it
            path.rmdir()
    return _left(run)


def remove_entry(path: Path) -> None:
    """Remove one file, name or checkpoint of a run.

    Raises:
        OSError: It can't be removed.
    """
    if is_partial(path.name):
        remove_partial(path)
    elif not remove_checkpoint(path):
        path.unlink()


def is_of_checkpoints(path: Path) -> bool:
    """Whether an entry of the folder of checkpoints is one, a name of one (last, best), or half-written."""
    own = is_partial(path.name) or is_checkpoint(path)
    return own or target_of(path.parent, path.name) is not None


def _remove(paths: Iterable[Path], is_own: Callable[[Path], bool]) -> None:
    for path in [path for path in paths if is_own(path)]:  # all are told before one goes that proves another
        remove_entry(path)


def _is_folder_of_run(path: Path) -> bool:
    return path.name in _FOLDERS and path.is_dir() and not path.is_symlink()


def _is_file_of_run(path: Path) -> bool:
    is_file = not path.is_dir() or path.is_symlink()
    return (is_file and path.name in _FILES) or is_partial(path.name)


def _is_of_ranks(path: Path) -> bool:
    return path.is_file() and (bool(_RANK_FILE.fullmatch(path.name)) or is_partial(path.name))


def _is_of_tensorboard(path: Path) -> bool:
    return path.is_file() and bool(_TENSORBOARD_FILE.fullmatch(path.name))


def _is_picture(path: Path) -> bool:
    from mptui.data.pictures import is_own_png

    if is_partial(path.name):
        return True
    if path.suffix not in {".png", ".json"} or path.is_symlink():
        return False
    # those of earlier versions have no text of ours, but a record
    is_recorded = pictures.read(path) is not None
    return is_recorded or (path.suffix == ".png" and is_own_png(path))


_FOLDERS: dict[str, Callable[[Path], bool]] = {
    CHECKPOINTS: is_of_checkpoints,
    RANKS: _is_of_ranks,
    pictures.FOLDER: _is_picture,
    "samples": _is_picture,
    "tensorboard": _is_of_tensorboard,
}


def _left(run: Path) -> tuple[str, ...]:
    paths = [path for path in sorted(run.iterdir()) if path.name not in _KEPT_TO_THE_END]
    groups = [sorted(path.iterdir()) if _is_folder_of_run(path) else [path] for path in paths]
    return tuple(str(path.relative_to(run)) for group in groups for path in group)
