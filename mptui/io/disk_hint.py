"""Says what to do about a file that can't be written: by the cause, as a full disk is only one of them."""

import errno
import os
from pathlib import Path

_CAUSES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check the permissions"),
    errno.EROFS: "mount the disk writable",
    errno.ENOLCK: "start the lock service of this network disk",
    errno.ESTALE: "mount the disk again",
    errno.EIO: "check the disk and its connection",
    errno.ENOTCONN: "check the disk and its connection",
    errno.ETIMEDOUT: "check the connection of the disk",
    errno.EDQUOT: "free disk space within your quota",
}


def disk_hint(error: OSError, place: Path, otherwise: str) -> str:
    """Return the remedy of a failed write: that of its cause, or `otherwise`, as "choose another folder"."""
    if error.errno == errno.ENOSPC:
        cause = "remove files: no inodes are free" if lacks_inodes(place) else "free disk space"
    else:
        cause = _CAUSES.get(error.errno or 0, "")
    return f"{cause}, or {otherwise}" if cause else otherwise


def lacks_inodes(place: Path) -> bool:
    """Whether the disk of a file or folder has no room for another name; False where it can't be told."""
    for path in (place, place.parent):
        try:
            status = os.statvfs(path)
        except OSError:
            continue
        return bool(status.f_files) and not status.f_favail
    return False
