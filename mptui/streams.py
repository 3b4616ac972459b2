"""Standard streams that survive the loss of a terminal, of a pipe's reader or of disk space.

A descriptor that was closed by the shell (`>&-`) is opened on /dev/null before anything else is opened:
otherwise the next file of the process, a run's journal for example, gets its number, and whatever a library
prints is written into that file.
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
"""Errors of a pipe without a reader and of a closed terminal. A full disk may have room again."""


class OutputError(OSError):
    """A result could not be written to stdout: its disk is full, or in trouble."""


class LossyFile(io.FileIO):
    """A raw stream that drops what it can't write instead of raising.

    Attributes:
        gone: Whether nothing that is written to it arrives any more.
    """

    gone = False

    def write(self, data: "ReadableBuffer") -> int:
        """Write `data` or drop it; returns the number of bytes taken."""
        try:
            return super().write(data)
        except OSError as error:
            self.gone = self.gone or error.errno in _PERMANENT
            return len(memoryview(data).cast("B"))


class _ResultFile(io.FileIO):
    """A raw stream whose errors are told apart from those of any other file."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


def lossy_stream(descriptor: int) -> io.TextIOWrapper:
    """Open a text stream on `descriptor` that drops what it can't write; the descriptor stays open."""
    return _text(LossyFile(descriptor, "w", closefd=False), encoding="utf-8", errors="replace")


def is_gone(stream: TextIO) -> bool:
    """Whether `stream` is a lossy one that reaches nobody any more."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, LossyFile) and raw.gone


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open closed descriptors; while the context lasts, stderr is lossy and stdout raises `OutputError`.

    Progress and warnings on stderr are no reason to end a command; a result that is lost on stdout is one.
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
    """Point `stream` at /dev/null, so that flushing what it still buffers raises no more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _like(stream: TextIO | None, raw: io.FileIO, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """A text stream on `raw` with the encoding of `stream`, which is None where its descriptor was closed."""
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
