"""Opens regular files only, for directories that may hold FIFOs, devices or links.

Opening a FIFO waits for its other end, reading `/dev/zero` never ends, and a link can point out of its
directory.
"""

import errno
import os
import stat

_BLOCK = 1 << 20


class OddFileError(OSError):
    """Not a regular file, or larger than its size limit."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file as `os.open` does, and return its descriptor; never waits for other kinds.

    Args:
        path: The file.
        flags: Flags of `os.open`. With `O_NOFOLLOW` a link is refused.
        mode: Permissions of a file that is created.

    Raises:
        OddFileError: It is not a regular file.
        OSError: It can't be opened.
    """
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    except OSError as error:
        refused = {errno.ENXIO} | ({errno.ELOOP} if flags & os.O_NOFOLLOW else set())
        if error.errno in refused:  # a socket, a FIFO without a reader, a link
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
        limit: Largest size in bytes.
        flags: Additional flags of `os.open`.

    Raises:
        OddFileError: It is not a regular file, or larger than `limit`.
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
