"""Atomic file replacement: after a crash or on a full disk, the file is the old or the new one.

All calls go through `os`, one by one, so that tests can make any of them fail.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_BLOCK = 1 << 22
_PARTIAL = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.partial")

Guard = Callable[[], contextlib.AbstractContextManager[None]]
"""Context around each rename that other processes see. It raises if this process no longer owns the run; its
body must be short. See `mptui.runs.store.claim.Claim.change`."""


def partial_path(path: Path) -> Path:
    """Return a temporary name next to `path`, unique among processes and machines."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")


def is_partial(name: str) -> bool:
    """Whether a file's name is one that `partial_path` gives."""
    return _PARTIAL.fullmatch(name) is not None


def write_synced(path: Path, blocks: Iterable[bytes | memoryview], mode: int = 0o600) -> str:
    """Write a file, and wait until it is on the disk.

    Args:
        path: The file.
        blocks: Its content.
        mode: Permissions of a new file, less the umask; by default its owner's alone.

    Returns:
        The sha256 of the content in hex, computed from memory, so that a reader detects a disk that stored
        other bytes.

    Raises:
        OSError: The disk is full, gone or not writable; the file may be incomplete.
    """
    digest = hashlib.sha256()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        for block in blocks:
            digest.update(block)
            left = memoryview(block).cast("B")
            while left:
                left = left[os.write(file, left[:_BLOCK]) :]
        os.fsync(file)
    finally:
        os.close(file)
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: Path, guard: Guard = contextlib.nullcontext, fresh: Path | None = None) -> Iterator[Path]:
    """A name to write a file under, which takes the place of `path` by one rename when the block ends.

    What was written is removed where the block, the guard or the rename fails.

    Args:
        path: The file.
        guard: Entered for the rename alone.
        fresh: The name; by default one that no other process has.
    """
    fresh = fresh or partial_path(path)
    try:
        yield fresh
        with guard():
            os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def replace_file(
    path: Path, content: bytes | memoryview, guard: Guard = contextlib.nullcontext, mode: int = 0o600
) -> str:
    """Replace a file by one rename, once its content is on the disk; returns the content's sha256.

    Args:
        path: The file.
        content: What will be in it.
        guard: As in `replacing`.
        mode: As in `write_synced`.

    Raises:
        OSError: The disk is full, gone or not writable; the old file is unchanged.
        MptuiError: Raised by the guard; the old file is unchanged.
    """
    with replacing(path, guard) as fresh:
        return write_synced(fresh, [content], mode)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk.

    Raises:
        OSError: The disk is gone.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
