"""Special files in place of a regular one, in a directory from an untrusted source."""

import os
from pathlib import Path

KINDS = ("fifo", "zero", "link")


def put(path: Path, kind: str, target: Path) -> None:
    """Put a FIFO, a link to /dev/zero or a link to `target` in place of a file."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else target)
