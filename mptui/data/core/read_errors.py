"""Errors of the system in reading a sample: which may pass, and which are of the machine and not of the file.

A file that can't be read is tried again a few times where the error may pass, and is a bad sample if it does
not. A machine without files or memory left ends the reading: the files are as good as ever. No torch here:
workers import this.
"""

import errno
import os
from collections.abc import Callable
from time import sleep
from typing import TypeVar

from mptui.data.core.types import BadSampleError
from mptui.errors import DataError
from mptui.text import clean_name

T = TypeVar("T")

READ_ERROR = "read error: "
"""What the reason of an error begins with that came from the disk and not from the file's content."""

_PASSING = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENXIO),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNRESET),
        *(errno.ENOTCONN, errno.EREMOTEIO if hasattr(errno, "EREMOTEIO") else errno.EIO),
    )
)
_OF_THE_MACHINE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer --workers",
    errno.ENFILE: "the machine has too many open files: close other programs, or raise fs.file-max",
    errno.ENOMEM: "the machine is out of memory: close other programs, or use fewer --workers",
}
_PAUSES_S = (0.1, 0.4, 1.0)
_MOST_FUTILE = 5
"""Reads in a row for which waiting did not help; then a disk is gone, and nothing is waited for any more."""


class _Patience:
    """How often waiting did not help in this process."""

    futile = 0


def reason_of(error: OSError) -> str:
    """What to say of an error of the system."""
    told = (error.strerror or str(error)).lower()
    return READ_ERROR + told if error.errno in _PASSING or error.errno in _OF_THE_MACHINE else told


def machine_fault(path: str, reason: str) -> DataError | None:
    """What to raise where a `reason` is of the machine; None where it is of the file."""
    for number, hint in _OF_THE_MACHINE.items():
        if reason == READ_ERROR + os.strerror(number).lower():
            return DataError(f"{clean_name(path)}: cannot read: {os.strerror(number).lower()}", hint=hint)
    return None


def tried_again(read: Callable[[], T]) -> T:
    """What `read` returns, which is called again after a while where an error may pass.

    Raises:
        BadSampleError: The last time too, or for another reason.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            found = read()
        except BadSampleError as error:
            if not error.reason.startswith(READ_ERROR):
                raise
            if pause_s is None or _Patience.futile >= _MOST_FUTILE:
                _Patience.futile += 1
                raise
            sleep(pause_s)
        else:
            _Patience.futile = 0
            return found
    raise AssertionError("the last of the tries returns or raises")
