"""Measures how fast files are read in random order, as a run reads its samples.

What is read is dropped from the page cache before (posix_fadvise(2), POSIX_FADV_DONTNEED: allowed to all,
without effect on pages that are not yet written). Then each piece is asked whether it is still there
(preadv2(2), RWF_NOWAIT: EAGAIN if reading would wait for the disk).
"""

import itertools
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mptui.io.files import open_regular

READERS = 4
MOST_BYTES = 256 << 20
MOST_SECONDS = 2.0
_MOST_FILES = 10_000
"""Files that are listed: of a larger folder, the first."""
_PIECE = 4 << 20
"""Bytes that are read at once; of larger files, pieces at random."""

_Piece = tuple[str, int, int]
"""A file, the offset of a part of it, and its length in bytes."""


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """What was read, and in how many seconds, by `READERS` threads."""

    bytes_read: int
    files: int
    seconds: float
    cached: float | None
    """The share of the pieces that were in memory nevertheless; None: the file system doesn't tell."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes a second of all readers together."""
        return self.bytes_read / self.seconds

    @property
    def files_per_second(self) -> float:
        """Files a second of all readers together."""
        return self.files / self.seconds


def measure_read_speed(place: Path) -> ReadSpeed | None:
    """Read files of a folder, or parts of one file, up to `MOST_BYTES` and for `MOST_SECONDS`.

    Returns:
        None if there is nothing that can be read.
    """
    pieces = list(_pieces(place))
    random.Random(0).shuffle(pieces)
    sizes = itertools.accumulate(length for _, _, length in pieces)
    chosen = [piece for piece, total in zip(pieces, sizes, strict=True) if total <= MOST_BYTES]
    chosen = chosen or pieces[:1]
    start = time.perf_counter()
    with ThreadPoolExecutor(READERS) as readers:
        read = list(readers.map(lambda piece: _read(piece, start + MOST_SECONDS), chosen))
    seconds = time.perf_counter() - start
    done = [(piece[0], *result) for piece, result in zip(chosen, read, strict=True) if result]
    if not done:
        return None
    known = [cached for _, _, cached in done if cached is not None]
    return ReadSpeed(
        bytes_read=sum(length for _, length, _ in done),
        files=len({file for file, _, _ in done}),
        seconds=seconds,
        cached=sum(known) / len(known) if known else None,
    )


def _pieces(place: Path) -> Iterator[_Piece]:
    for file in itertools.islice(_files(place), _MOST_FILES):
        try:
            size = os.stat(file).st_size  # noqa: PTH116 - a Path for each file is slow
        except OSError:
            continue
        for offset in range(0, size, _PIECE):
            yield file, offset, min(_PIECE, size - offset)


def _files(place: Path) -> Iterator[str]:
    if not place.is_dir():
        yield str(place)
    for folder, _, names in os.walk(place):
        for name in names:
            yield os.path.join(folder, name)  # noqa: PTH118 - a Path for each file is slow


def _read(piece: _Piece, until: float) -> tuple[int, bool | None] | None:
    """Read a piece: its bytes, and whether they were in memory; None: it can't be read, or it is too late."""
    file, offset, length = piece
    if time.perf_counter() > until:
        return None
    try:
        descriptor = open_regular(file)
    except OSError:
        return None
    try:
        cached = _in_memory(descriptor, offset, length)
        return len(os.pread(descriptor, length, offset)), cached
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _in_memory(descriptor: int, offset: int, length: int) -> bool | None:
    """Drop a piece from the page cache; whether it is there nevertheless, None if that is not known."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):  # not on macOS
        return None
    try:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:  # a file system that can't read without waiting, such as tmpfs
        return None
