"""Opens regular files only, so that a FIFO, a device or a link in a received directory can do no harm.

Opening a FIFO waits for its other end, reading `/dev/zero` never ends, and a link leads out of the directory
in which it lies.
"""

import errno
import os
import stat

_BLOCK = 1 << 20


class OddFileError(OSError):
    """Not a regular file, or larger than any file of its kind."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a file as `os.open` does, without ever waiting for what is none; return its descriptor.

    Args:
        path: The file.
        flags: Of `os.open`. With `O_NOFOLLOW` a link is refused.
        mode: Of a file that is made.

    Raises:
        OddFileError: There is something else than a regular file.
        OSError: It can't be opened.
    """
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    except OSError as error:
        refused = {errno.ENXIO} | ({errno.ELOOP} if flags & os.O_NOFOLLOW else set())
        if error.errno in refused:  # a socket, a FIFO that nobody reads; a link
            raise _odd(path, "not a regular file") from error
        raise
    kind = os.fstat(file).st_mode
    if stat.S_ISREG(kind):
        return file
    os.close(file)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _odd(path, "not a regular file")


def read_regular(path: str | os.PathLike[str], limit: int, flags: int = 0) -> bytes:
    """Read the whole of a regular file.

    Args:
        path: The file.
        limit: The most bytes that such a file has.
        flags: Added to those of `os.open`.

    Raises:
        OddFileError: There is something else than a regular file, or a larger one.
        OSError: It can't be read.
    """
    file = open_regular(path, os.O_RDONLY | flags)
    try:
        content = bytearray()
        while block := os.read(file, min(_BLOCK, limit + 1 - len(content))):
            content += block
    finally:
        os.close(file)
    if len(content) > limit:
        raise _odd(path, f"larger than {limit:,} bytes")
    return bytes(content)


def _odd(path: str | os.PathLike[str], why: str) -> OddFileError:
    return OddFileError(errno.EINVAL, why, os.fspath(path))
