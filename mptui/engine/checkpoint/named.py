"""Reads the checkpoint of a name (last, best) without changing anything: its run may be training."""

from collections.abc import Collection
from pathlib import Path

from mptui.engine.checkpoint.files import Snapshot, read_checkpoint
from mptui.engine.checkpoint.pointers import checkpoint_of
from mptui.errors import DiskError, RunDirectoryError


def read_named(folder: Path, name: str, groups: Collection[str]) -> Snapshot | None:
    """Read some groups of tensors of the checkpoint `folder/name`; None if nothing has this name.

    Args:
        folder: The run's `checkpoints` folder.
        name: The name: last, best.
        groups: The groups of tensors to read.

    Raises:
        RunDirectoryError: The checkpoint is damaged, or of a newer version.
        DiskError: It can't be read now.
    """
    while (path := _place(folder, name)) is not None:
        try:
            return read_checkpoint(path, groups)
        except RunDirectoryError:
            if _place(folder, name) == path:
                raise
            # the run has saved another one, and removed this one while it was read
    return None


def _place(folder: Path, name: str) -> Path | None:
    try:
        return checkpoint_of(folder, name)
    except OSError as error:
        raise DiskError(
            f"{folder / name}: cannot be read: {error.strerror or error}",
            hint="try again when the disk responds and the files are readable",
        ) from error
