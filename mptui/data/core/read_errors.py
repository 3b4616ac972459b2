"""Classifies system errors while reading a sample: transient ones, and those caused by the machine.

A read with a transient error is retried a few times; if it still fails, the file is a bad sample. A machine
without open files or memory left ends the run, since the files are not at fault. No torch here: workers
import this.
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
"""Prefix of reasons caused by the disk, not by the content of a file."""

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
"""Number of consecutive failed reads after which the disk counts as gone and nothing is retried."""


class _Patience:
    """Counts the consecutive failed retries of this process."""

    futile = 0


def reason_of(error: OSError) -> str:
    """Return the reason to show for a system error."""
    told = (error.strerror or str(error)).lower()
    return READ_ERROR + told if error.errno in _PASSING or error.errno in _OF_THE_MACHINE else told


def machine_fault(path: str, reason: str) -> DataError | None:
    """Return the error to raise if the machine caused `reason`; None if the file did."""
    for number, hint in _OF_THE_MACHINE.items():
        if reason == READ_ERROR + os.strerror(number).lower():
            return DataError(f"{clean_name(path)}: cannot read: {os.strerror(number).lower()}", hint=hint)
    return None


def tried_again(read: Callable[[], T]) -> T:
    """Call `read`, and retry it after a pause on a transient error.

    Raises:
        BadSampleError: All retries failed, or the error is not transient.
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
