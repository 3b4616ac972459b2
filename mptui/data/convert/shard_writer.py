"""Writes the shards of a prepared set atomically, so that a killed `mptui prepare` can continue.

A shard is written under a temporary name, synced and renamed; then a note of its contents is written. A shard
with a note is complete.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.convert.shrink import Small
from mptui.data.formats.sharded import RECORD, shard_name
from mptui.io.atomic import replacing, write_synced
from mptui.io.user_cache import load_arrays

_TAR_BLOCK = 512
_TAR_END = bytes(2 * _TAR_BLOCK)


@dataclass(slots=True)
class Shard:
    """The contents of a shard, and the samples left out."""

    records: npt.NDArray[np.void]
    pixels: npt.NDArray[np.int64]
    left_out: list[tuple[str, str]]
    facts: dict[str, Any]
    """Size and sha256 of the file."""


class ShardWriter:
    """Writes one shard.

    Args:
        folder: Folder of the set.
        number: Number of the shard.

    Raises:
        OSError: The disk is full, gone, or not writable.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._records: list[tuple[int, ...]] = []
        self._pixels: list[tuple[int, ...]] = []
        self._left_out: list[tuple[str, str]] = []
        self._path = folder / f".{shard_name(number)}.partial"
        self._file = self._path.open("wb")
        self._digest, self._at = hashlib.sha256(), 0

    def add(self, row: int, label: int, small: Small) -> None:
        """Append a sample, or record that it is left out.

        Raises:
            OSError: The disk is full, gone, or not writable.
        """
        if small.reason:
            self._left_out.append((small.path, small.reason))
            return
        at, mask_at = self._member(f"{row:08d}.{small.kind}", small.image), 0
        if small.mask:
            mask_at = self._member(f"{row:08d}.seg.png", small.mask)
            self._pixels.append(small.pixels)
        else:
            self._member(f"{row:08d}.cls", str(label).encode())
        sizes = len(small.image), len(small.mask)
        self._records.append((self._number, row, at, mask_at, *sizes, label, small.shorter, small.longer))

    def finish(self) -> Shard:
        """Sync the shard to the disk and rename it to its final name.

        Raises:
            OSError: The disk is full, gone, or not writable.
        """
        self._write(_TAR_END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._folder / shard_name(self._number))
        shard = Shard(
            np.array(self._records, RECORD),
            np.array(self._pixels, np.int64),
            self._left_out,
            {"bytes": self._at, "sha256": self._digest.hexdigest()},
        )
        _write_note(self._folder, self._number, shard)
        return shard

    def give_up(self) -> None:
        """Remove an unfinished shard."""
        with suppress(OSError):  # the buffered rest does not fit on the disk either
            self._file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _member(self, name: str, content: bytes) -> int:
        """Append a file to the archive; return the offset of its content."""
        header = tarfile.TarInfo(name)
        header.size = len(content)
        self._write(header.tobuf(tarfile.USTAR_FORMAT))
        at = self._at
        self._write(content + bytes(-len(content) % _TAR_BLOCK))
        return at

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._at += len(content)


def finished_shard(folder: Path, number: int) -> Shard | None:
    """Return a shard finished by an earlier, interrupted call; None if it is not finished."""
    noted = load_arrays(_note(folder, number))
    try:
        facts, left_out = json.loads(noted["facts"].tobytes())
        if (folder / shard_name(number)).stat().st_size != facts["bytes"]:
            return None
        records = noted["records"]
        return (
            Shard(records, noted["pixels"], [(p, r) for p, r in left_out], facts)
            if records.dtype == RECORD
            else None
        )
    except (OSError, KeyError, TypeError, ValueError):
        return None


def forget_notes(folder: Path, numbers: Iterable[int]) -> None:
    """Remove the notes of shards, which the set's index replaces."""
    for number in numbers:
        _note(folder, number).unlink(missing_ok=True)


def write_file(path: Path, content: bytes | memoryview) -> dict[str, Any]:
    """Replace a file of the set atomically; return its size and sha256.

    Raises:
        OSError: The disk is full, gone, or not writable; an older file is unchanged.
    """
    fresh = path.with_name(f".{path.name}.partial")  # the next call overwrites the file of a killed one
    with replacing(path, fresh=fresh):
        return {"bytes": len(content), "sha256": write_synced(fresh, [content], 0o666)}


def _note(folder: Path, number: int) -> Path:
    return folder / f".{shard_name(number)}.npz"


def _write_note(folder: Path, number: int, shard: Shard) -> None:
    content = BytesIO()
    facts = np.frombuffer(json.dumps([shard.facts, shard.left_out]).encode(), np.uint8)
    np.savez(content, records=shard.records, pixels=shard.pixels, facts=facts)
    write_file(_note(folder, number), content.getbuffer())
