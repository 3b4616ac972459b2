"""Checks the space for checkpoints, and builds the error of a save that failed."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from mptui import format as fmt
from mptui.errors import DiskError
from mptui.events import Alert, CheckpointSaved, Event, Recovered
from mptui.io.disk_hint import disk_hint, lacks_inodes

FEW, ENOUGH = 3, 4
"""Further checkpoints that fit on the disk: fewer than the first begin an alert, the second ends it."""

DISK = "disk"
"""Code of the alert."""


def need_space(folder: Path, size: int) -> None:
    """Check that `size` bytes and a small margin are free.

    Raises:
        OSError: They, or a name for a file, are not free (ENOSPC), or the folder can't be read.
    """
    if lacks_inodes(folder) or shutil.disk_usage(folder).free < size * 1.05 + (1 << 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cant_save(folder: Path, size: int, error: OSError) -> DiskError:
    """Build the error of a failed save of `size` bytes: its cause, the space needed, the space free."""
    room = _room(folder, size)
    remedy = disk_hint(error, folder, "choose another disk with --runs-dir")
    hint = f"{remedy}; the previous checkpoint is intact"
    if isinstance(error, FileNotFoundError):
        hint = "the disk or the run directory is missing: mount it again, or move it back"
    elif isinstance(error, TimeoutError):
        room = ""
        hint = (
            "end the process that keeps it locked (it may be suspended), or check the connection of the disk"
        )
    return DiskError(f"{folder}: cannot save: {(error.strerror or str(error)).lower()}{room}", hint=hint)


def _room(folder: Path, size: int) -> str:
    needed = f"; {size:,} bytes are needed" if size else ""
    with contextlib.suppress(OSError):
        return f"{needed}{' and' if size else ';'} {shutil.disk_usage(folder).free:,} are free"
    return needed


class DiskWatch:
    """Tells when the disk of a run is nearly full, and when it has room again.

    Args:
        folder: A folder on it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._size, self._scarce = folder, 0, False

    def handle(self, event: Event) -> None:
        """Take the size of the last checkpoint; a recovery of the disk has ended the alert."""
        if isinstance(event, CheckpointSaved):
            self._size = event.size_bytes
        elif isinstance(event, Recovered) and event.problem == DISK:
            self._scarce = False

    def check(self, emit: Callable[[Event], None], step: int) -> None:
        """Emit an alert or its end; an unreadable folder is neither."""
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self._folder).free
            scarce = free < (ENOUGH if self._scarce else FEW) * self._size
            if scarce != self._scarce:
                self._scarce = scarce
                room = f"{fmt.size(free)} are free, a checkpoint has {fmt.size(self._size)}"
                message = f"the disk is nearly full: {room}" if scarce else f"the disk has room again: {room}"
                emit(Alert(step=step, code=DISK, message=message, over=not scarce))
