"""A file of a tracker that only grows, and has each event once also after a kill."""

import os
from pathlib import Path

from mptui.io.marker import make_folder
from mptui.registry.tracker import Kept
from mptui.regular import open_regular


class GrowingFile:
    """Appends bytes; what was written after the last stored size is cut off when it is opened again.

    Args:
        path: The file; links are refused. If it is missing or shorter than its stored size, it is written
            anew from the first event on.
        kept: What the tracker has kept: `size` is the stored size.

    Attributes:
        size: Bytes of the file; 0 for a new one.

    Raises:
        OSError: It can't be opened.
    """

    def __init__(self, path: Path, kept: Kept) -> None:
        make_folder(path.parent)
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        self._waiting = bytearray()
        size = kept.get("size")
        if not isinstance(size, int) or not 0 < size <= os.fstat(self._file).st_size:
            size = kept["position"] = 0
        os.ftruncate(self._file, size)
        self.size = size

    def write(self, data: bytes) -> None:
        """Append bytes with the next `flush`."""
        self._waiting += data

    def flush(self) -> None:
        """Append what waits to the file.

        Raises:
            OSError: The disk is full or gone.
        """
        while self._waiting:
            written = os.write(self._file, self._waiting)
            self.size += written
            del self._waiting[:written]

    def close(self) -> None:
        """Append what waits, and close the file."""
        self.flush()
        os.close(self._file)
