"""Removes what a run has written into its folder; what others have put there stays.

A file is a run's by its full name at its place, a checkpoint by its manifest, a picture by its text or its
record. No link is followed.
"""

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from mptui.engine.checkpoint.pointers import target_of
from mptui.io.atomic import is_partial
from mptui.io.marker import RUN_MARKER, is_checkpoint
from mptui.io.removal import remove_checkpoint, remove_partial
from mptui.runs.pictures import picture_files
from mptui.runs.store.directory import CHECKPOINTS, CONFIG, RANKS
from mptui.runs.store.lock import NAME as LOCK
from mptui.runs.store.lock import PRIVATE

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
    from mptui.data.core.png_files import is_own_png

    if is_partial(path.name):
        return True
    if path.suffix not in {".png", ".json"} or path.is_symlink():
        return False
    # those of earlier versions have no text of ours, but a record
    is_recorded = picture_files.read(path) is not None
    return is_recorded or (path.suffix == ".png" and is_own_png(path))


_FOLDERS: dict[str, Callable[[Path], bool]] = {
    CHECKPOINTS: is_of_checkpoints,
    RANKS: _is_of_ranks,
    picture_files.FOLDER: _is_picture,
    "samples": _is_picture,
    "tensorboard": _is_of_tensorboard,
}


def _left(run: Path) -> tuple[str, ...]:
    paths = [path for path in sorted(run.iterdir()) if path.name not in _KEPT_TO_THE_END]
    groups = [sorted(path.iterdir()) if _is_folder_of_run(path) else [path] for path in paths]
    return tuple(str(path.relative_to(run)) for group in groups for path in group)
