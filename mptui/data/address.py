r"""Addresses of images, as text: the path of a file, or a part of a larger file such as a tar shard.

The address of a part is `FILE\0AT\0SIZE\0TITLE`, as no path holds a NUL. So lists of images, the scan, its
cache and the requests of workers need not know where an image is stored; who opens a file uses `open_binary`.
"""

import io
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import BinaryIO

from mptui.io.files import open_regular

MOST_BYTES = 256 << 20
"""Largest part of a file that is read: larger than any image that can be decoded."""

_SEPARATOR = "\0"
_BETWEEN = "\0\0"
"""Separates joined files: the address of a part has no empty part."""


def part_of(file: str, at: int, size: int, title: str) -> str:
    """Return the address of `size` bytes of a file from offset `at`.

    Args:
        file: The path of the file.
        at: Offset in bytes.
        size: Number of bytes.
        title: The name of the part in messages.
    """
    return _SEPARATOR.join((file, str(at), str(size), title))


def joined_address(files: Sequence[str]) -> str:
    """Return the address of several files that are read as one: the masks of one image."""
    return _BETWEEN.join(files)


def joined_files(address: str) -> list[str]:
    """Return the files of such an address; one of another address."""
    return address.split(_BETWEEN)


def is_part(address: str) -> bool:
    """Whether an address is that of a part of a file."""
    return _SEPARATOR in address and _BETWEEN not in address


def title_of(address: str) -> str:
    """Return the name of an image in messages: the path of its file, or the title of a part."""
    if _BETWEEN in address:
        return joined_files(address)[0]
    return address.split(_SEPARATOR, 3)[3] if is_part(address) else address


def open_binary(address: str) -> BinaryIO:
    """Open a file, or a part of one as if it were a file; a file of parts is opened once per process.

    Raises:
        OSError: It can't be opened, or a file of parts is not a regular file.
    """
    if not is_part(address):
        return open(address, "rb")
    file, at, size, _ = address.split(_SEPARATOR, 3)
    return io.BufferedReader(_Part(_opened(file), int(at), int(size)))


def read_part(address: str) -> bytes:
    """Read a part of a file at once; less of it where the file ends early.

    Raises:
        OSError: The file can't be read, or is not a regular file.
    """
    file, at, size, _ = address.split(_SEPARATOR, 3)
    return os.pread(_opened(file).fileno(), int(size), int(at))


def status_of(address: str) -> tuple[int, int]:
    """Return the size of an image in bytes, and when its file was last changed, in ns.

    Raises:
        OSError: The file is missing.
    """
    if _BETWEEN in address:
        found = [status_of(file) for file in joined_files(address)]
        return sum(size for size, _ in found), max(changed_ns for _, changed_ns in found)
    file, _, rest = address.partition(_SEPARATOR)
    status = os.stat(file)
    return int(rest.split(_SEPARATOR, 2)[1]) if rest else status.st_size, status.st_mtime_ns


class _Part(io.RawIOBase):
    """A part of a file; ends early where the file does."""

    def __init__(self, file: io.FileIO, at: int, size: int) -> None:
        self._file = file
        self._start = at
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start")
        self._place = base + offset
        return self._place

    def readall(self) -> bytes:
        # pread: forked workers share the descriptor, and with it the position
        content = os.pread(self._file.fileno(), max(self._size - self._place, 0), self._start + self._place)
        self._place += len(content)
        return content

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(self._size - self._place, 0))
        content = os.pread(self._file.fileno(), wanted, self._start + self._place)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)


@lru_cache(maxsize=256)
def _opened(file: str) -> io.FileIO:
    return io.FileIO(open_regular(file), "rb")
