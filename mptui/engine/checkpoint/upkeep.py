"""Keeps the folder of checkpoints in order: removes those that nobody needs, adopts what a copy brought."""

import contextlib
import os
from pathlib import Path
from typing import Any, Literal

from mptui.engine.checkpoint.disk_space import cant_save
from mptui.engine.checkpoint.files import (
    BEST,
    NAMES,
    NewerVersionError,
    checkpoints,
    free_name,
    point,
    read_checkpoint,
)
from mptui.engine.checkpoint.pointers import target_of
from mptui.errors import DiskError, RunDirectoryError
from mptui.io.atomic import Guard, is_partial
from mptui.io.marker import is_checkpoint
from mptui.io.removal import remove_checkpoint, remove_partial


def keep_only(folder: Path, count: int | Literal["all"], guard: Guard = contextlib.nullcontext) -> None:
    """Remove all but the newest `count` checkpoints and those that a name (last, best) points to.

    Of `all` none is removed. Partial files of killed processes are removed, too. Errors are ignored: the next
    call retries.
    """
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if count != "all":
            whole = [path for path in checkpoints(folder) if is_checkpoint(path)]
            kept = {target_of(folder, name) for name in names if not name.startswith(".")} | {*whole[-count:]}
            for path in whole:
                if path not in kept:
                    remove_checkpoint(path, guard)
        for name in filter(is_partial, names):
            with guard():
                remove_partial(folder / name)


def adopt(folder: Path, guard: Guard = contextlib.nullcontext) -> None:
    """Give checkpoints that are folders named last or best, in place of links, the names of their steps.

    Copies of a run that follow links (rsync -L, object stores, zip) bring such folders. Others leave links
    out: without one, the best checkpoint is known by its state, and would be removed as one of many.

    Raises:
        RunDirectoryError: Such a folder is not an intact checkpoint.
        DiskError: It can't be read, or the folder can't be written.
    """
    for name in NAMES:
        place = folder / name
        if not place.is_dir() or place.is_symlink():
            continue
        try:
            step = read_checkpoint(place, ()).step
        except NewerVersionError:
            raise
        except RunDirectoryError as error:
            raise RunDirectoryError(
                f"{error.message}; it is a folder in place of a link to a checkpoint",
                hint="copy it again; or move it out of the run, to go on from another checkpoint",
            ) from error
        try:
            path = free_name(folder, step)
            with guard():
                os.rename(place, path)
        except OSError as error:
            raise cant_save(folder, 0, error) from error
        point(folder, name, path, guard)
    if not os.path.lexists(folder / BEST) and (best := _best_of(folder)) is not None:
        point(folder, BEST, best, guard)


def _best_of(folder: Path) -> Path | None:
    """Return the checkpoint of the best epoch that the newest one knows of; None: it isn't there."""
    paths = checkpoints(folder)
    newest = next(filter(None, map(_state, reversed(paths))), {})
    epoch = newest.get("best", {}).get("epoch")
    return next((path for path in paths if _is_of_best(_state(path), epoch)), None) if epoch else None


def _is_of_best(state: dict[str, Any], epoch: int) -> bool:
    """Whether a state was taken after the validation of the best epoch, before any further step."""
    best, cursor = state.get("best", {}), state.get("cursor", {})
    if (best.get("epoch"), best.get("epochs_since")) != (epoch, 0):
        return False
    return cursor.get("sample") == 0 or bool(cursor.get("measured_at") == state["step"])


def _state(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint; empty if it can't be read."""
    try:
        return read_checkpoint(path, ()).state
    except (RunDirectoryError, DiskError):
        return {}
