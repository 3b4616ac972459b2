"""Standard streams that tolerate the loss of the terminal, of a pipe's reader or of disk space.

A descriptor that the shell closed (`>&-`) is opened on /dev/null before any other file: otherwise the next
file, for example a run's journal, gets its number, and output of libraries is written into it.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = (0, 1, 2)
_PERMANENT = {errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO}
"""Errors of a pipe without a reader and of a closed terminal; not those of a full disk, which can recover."""


class OutputError(OSError):
    """stdout can't be written: its disk is full or failing."""


class LossyFile(io.FileIO):
    """A raw stream that discards data that it can't write, instead of raising.

    Attributes:
        gone: Whether the reader or terminal is gone for good.
    """

    gone = False

    def write(self, data: "ReadableBuffer") -> int:
        """Write or discard `data`; return the number of bytes accepted."""
        try:
            return super().write(data)
        except OSError as error:
            self.gone = self.gone or error.errno in _PERMANENT
            return len(memoryview(data).cast("B"))


class _ResultFile(io.FileIO):
    """A raw stream that raises `OutputError`, to distinguish its errors from those of other files."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


def lossy_stream(descriptor: int) -> io.TextIOWrapper:
    """Open a text stream on `descriptor` that discards data it can't write; the descriptor stays open."""
    return _text(LossyFile(descriptor, "w", closefd=False), encoding="utf-8", errors="replace")


def is_gone(stream: TextIO) -> bool:
    """Whether `stream` is lossy and its reader or terminal is gone."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, LossyFile) and raw.gone


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open closed descriptors; while the context lasts, stderr is lossy and stdout raises `OutputError`.

    A command continues without its progress and warnings on stderr, but fails if its result is lost.
    """
    before = sys.stdout, sys.stderr
    _open_closed_descriptors()
    sys.stdout = _like(before[0], _ResultFile(1, "w", closefd=False))
    sys.stderr = _like(before[1], LossyFile(2, "w", closefd=False), line_buffering=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = before


def drop_unwritten(stream: TextIO) -> None:
    """Redirect `stream` to /dev/null, so that flushing its buffer doesn't raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _like(stream: TextIO | None, raw: io.FileIO, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """Return a text stream on `raw` with the encoding of `stream` (None: its descriptor was closed)."""
    if stream is None:
        return _text(raw, encoding="utf-8", errors="replace")
    buffered = line_buffering or raw.isatty()
    return _text(raw, encoding=stream.encoding, errors=stream.errors, line_buffering=buffered)


def _text(
    raw: io.FileIO, *, encoding: str | None, errors: str | None, line_buffering: bool = False
) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=line_buffering)


def _open_closed_descriptors() -> None:
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
