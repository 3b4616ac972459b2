"""Names (last, best) that point to a checkpoint; imports no torch.

Each is a symbolic link beside the checkpoints, or on a disk without links a file with the checkpoint's name.
"""

import errno
import os
import re
from pathlib import Path

from mptui.regular import OddFileError, read_regular

CHECKPOINT = re.compile(r"step-\d{9,}(\.\d+)?")
"""The name of a checkpoint's folder."""

_LARGEST = 256


def target_of(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that `folder/name` points to, which may not exist; None if there is no pointer.

    Raises:
        OSError: The pointer can't be read.
    """
    try:
        target = str((folder / name).readlink())
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # not a symbolic link
            raise
        try:
            target = read_regular(folder / name, _LARGEST, os.O_NOFOLLOW).decode().strip()
        except (OddFileError, IsADirectoryError, UnicodeDecodeError):
            return None
    return folder / target if CHECKPOINT.fullmatch(target) else None
