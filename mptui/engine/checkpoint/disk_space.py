"""Checks the space for a checkpoint, and builds the error of a save that failed."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

from mptui.errors import DiskError


def need_space(folder: Path, size: int) -> None:
    """Check that `size` bytes and a small margin are free.

    Raises:
        OSError: They are not free (ENOSPC), or the folder can't be read.
    """
    if shutil.disk_usage(folder).free < size * 1.05 + (1 << 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cant_save(folder: Path, size: int, error: OSError) -> DiskError:
    """Build the error of a failed save of `size` bytes: its cause, the space needed, the space free."""
    room = f"; {size:,} bytes are needed" if size else ""
    with contextlib.suppress(OSError):
        room += f"{' and' if size else ';'} {shutil.disk_usage(folder).free:,} are free"
    hint = "free disk space, or choose another disk with --runs-dir; the previous checkpoint is intact"
    if isinstance(error, FileNotFoundError):
        hint = "the disk or the run directory is missing: mount it again, or move it back"
    return DiskError(f"{folder}: cannot save: {(error.strerror or str(error)).lower()}{room}", hint=hint)
