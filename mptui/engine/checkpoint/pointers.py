"""Names (last, best) that lead to a checkpoint; imports no torch.

Each is a link beside the checkpoints, or on a disk without links a file with the checkpoint's name in it.
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
    """The checkpoint that `folder/name` leads to, be that gone; None where the name leads to none.

    Raises:
        OSError: It can't be read.
    """
    try:
        target = str((folder / name).readlink())
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # it is no link
            raise
        try:
            target = read_regular(folder / name, _LARGEST, os.O_NOFOLLOW).decode().strip()
        except (OddFileError, IsADirectoryError, UnicodeDecodeError):
            return None
    return folder / target if CHECKPOINT.fullmatch(target) else None
