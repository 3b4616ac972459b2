"""Shared memory that workers write and the trainer reads: an anonymous file, freed with its last process.

It is not in /dev/shm, which is small in containers and keeps the files of a killed process. Workers write
with `pwrite` through the inherited descriptor, so the file can grow without notifying them.
"""

import errno
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.core.types import RGB, Mask, PixelFormat, Pixels
from mptui.errors import DiskError


class Arena:
    """A growing anonymous file, mapped into this process."""

    def __init__(self) -> None:
        self.fd = anonymous_file()
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> None:
        """Grow to at least `size` bytes; earlier views stay valid. Untouched bytes take no memory.

        Raises:
            DiskError: It exceeds the limit of file sizes, or the memory is full.
        """
        if self._map is None or len(self._map) < size:
            extend(self.fd, size)
            self._map = mmap.mmap(self.fd, size)

    def pixels(self, at: int, count: int, side: int, form: PixelFormat = RGB) -> Pixels:
        """Return a view of `count` square images that begin at byte `at`."""
        return self._view(np.dtype(form.dtype), at, (count, side, side, form.bands))

    def slots(self, at: int, count: int, slot_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a view of `count` slots of `slot_bytes` bytes that begin at byte `at`."""
        return self._view(np.dtype(np.uint8), at, (count, slot_bytes))

    def masks(self, at: int, count: int, side: int) -> Mask:
        """Return a view of `count` square masks that begin at byte `at`."""
        return self._view(np.dtype(np.int16), at, (count, side, side))

    def _view(self, dtype: np.dtype, at: int, shape: tuple[int, ...]) -> npt.NDArray:  # type: ignore[type-arg]
        assert self._map is not None, "reserve first"
        return np.ndarray(shape, dtype, buffer=self._map, offset=at)

    def bytes(self) -> npt.NDArray[np.uint8]:
        """Return a view of all mapped bytes."""
        assert self._map is not None, "reserve first"
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Close the descriptor; the mapping exists as long as its last view."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._map = -1, None


def write_at(fd: int, array: npt.NDArray[Any], at: int) -> None:
    """Write the bytes of an array at an offset of a file.

    Raises:
        OSError: There is not enough space.
    """
    if os.pwrite(fd, array.data, at) < array.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def extend(fd: int, size: int) -> None:
    """Extend an anonymous file to `size` bytes; untouched bytes take no memory.

    Raises:
        DiskError: It exceeds the limit of file sizes, or the memory is full.
    """
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        limit = error.errno == errno.EFBIG
        raise DiskError(
            f"no space for {size:,} bytes of shared memory: {(error.strerror or str(error)).lower()}",
            hint="raise the limit of file sizes (ulimit -f), or use a smaller training.batch_size"
            if limit
            else "free memory, or use a smaller training.batch_size or fewer --workers",
        ) from error


def anonymous_file() -> int:
    """Open an anonymous file, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mptui-data")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
