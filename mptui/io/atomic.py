"""Files that a reader, a crash and a full disk meet whole: the old or the new, never a half.

All goes through `os`, one call after the other, so that a test can let any one of them fail.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

_BLOCK = 1 << 22

Guard = Callable[[], contextlib.AbstractContextManager[None]]
"""Entered around each change of a name that other processes see. It raises where the change is no longer this
process's to make, and its body is short: see `mptui.runs.store.lock.Claim.change`."""


def partial_path(path: Path) -> Path:
    """A name beside `path` under which to write it first; no other process, on any machine, has the same."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")


def write_synced(path: Path, blocks: Iterable[bytes | memoryview]) -> str:
    """Write a file for its owner alone, and wait until it is on the disk.

    Returns:
        The sha256 of what was meant to be written, in hex: taken from memory, so that a disk that stores
        something else is found out by whoever reads it.

    Raises:
        OSError: The disk is full, gone, or not writable; the file may be half written.
    """
    digest = hashlib.sha256()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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


def replace_file(path: Path, content: bytes, guard: Guard = contextlib.nullcontext) -> None:
    """Replace a file by one rename, for its owner alone.

    Args:
        path: The file.
        content: What will be in it.
        guard: Entered once the content is on the disk, for the rename alone.

    Raises:
        OSError: The disk is full, gone, or not writable; the old file is untouched.
        MptuiError: What the guard raises; the old file is untouched.
    """
    fresh = partial_path(path)
    try:
        write_synced(fresh, [content])
        with guard():
            os.replace(fresh, path)
    except Exception:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Raises:
        OSError: The disk is gone.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
