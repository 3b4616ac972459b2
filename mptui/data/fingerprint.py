"""Fingerprint of a dataset, to detect and describe later changes.

Names are relative to the common folder of all files, so that a copy of the set elsewhere is the same set.
Only the sizes of files are read: 1.2 million files take seconds.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mptui.data.address import status_of, title_of
from mptui.data.dataset import ArraySplit, FileSplit, Labels, MaskedSplit, PartTable, RenumberedSplit, Rows
from mptui.data.learned import class_changes
from mptui.data.types import RGB, Dataset, PixelFormat

_THREADS = 8
_AT_ONCE = 4096
_NOTHING = hashlib.sha256().hexdigest()
"""Digest of the names of a set without files; for drawn images, version 0.1.0 hashed their settings here."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Fingerprint of a dataset. Digests are sha256 over all usable samples."""

    train_samples: int
    val_samples: int
    classes: tuple[str, ...]
    names: str
    sizes: str
    labels: str
    bands: int = RGB.bands
    dtype: str = RGB.dtype

    @property
    def pixels(self) -> PixelFormat:
        """The format of the images."""
        return PixelFormat(self.bands, self.dtype)


def fingerprint(dataset: Dataset) -> Fingerprint:
    """Digest the names, sizes and labels of the samples; a missing file has size -1."""
    names, sizes, labels = _parts(dataset)
    return Fingerprint(
        train_samples=len(dataset.train),
        val_samples=len(dataset.val),
        classes=dataset.classes,
        names=hashlib.sha256(names).hexdigest(),
        sizes=hashlib.sha256(sizes).hexdigest(),
        labels=hashlib.sha256(labels).hexdigest(),
        bands=dataset.pixels.bands,
        dtype=dataset.pixels.dtype,
    )


def changes(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Describe how a set has changed; return an empty list if it has not."""
    told = []
    old, new = (each.train_samples + each.val_samples for each in (before, now))
    if new < old:
        told.append(f"gone: {old - new:,} of {old:,} samples")
    elif new > old:
        told.append(f"new: {new - old:,} on top of {old:,} samples")
    elif before.train_samples != now.train_samples:
        told.append(f"{now.train_samples:,} training samples instead of {before.train_samples:,}")
    if before.pixels != now.pixels:
        told.append(f"images have {now.pixels} instead of {before.pixels}")
    if before.classes != now.classes:
        told.append(class_changes(before.classes, now.classes))
    if old == new and now.names not in (before.names, _NOTHING):
        told.append("files have other names")
    elif old == new and before.sizes != now.sizes:
        told.append("files have other sizes")
    are_relabelled = before.labels != now.labels and before.classes == now.classes
    if old == new and are_relabelled:
        told.append("samples have other labels or masks")
    return told


def _parts(dataset: Dataset) -> tuple[bytes, bytes, bytes]:
    """Return names, sizes and labels as bytes, independent of the split."""
    train, val = (s.split if isinstance(s, RenumberedSplit) else s for s in (dataset.train, dataset.val))
    if isinstance(train, FileSplit) and isinstance(val, FileSplit):
        rows = _both(train.rows, val.rows)
        if isinstance(train.paths, PartTable) and train.paths.names is None:
            return _of_index(train.paths, np.zeros_like(train.paths.sizes), train.labels, rows)
        files = [train.paths[row] for row in rows]
        return _names(files), _sizes(files), train.labels[rows].tobytes()
    if isinstance(train, MaskedSplit) and isinstance(val, MaskedSplit):
        rows, of = _both(train.rows, val.rows), train.mask_paths
        if isinstance(train.paths, PartTable) and isinstance(of, PartTable) and train.paths.names is None:
            return _of_index(train.paths, of.sizes, np.zeros(len(of), np.int64), rows)
        images, masks = [train.paths[row] for row in rows], [train.mask_paths[row] for row in rows]
        return _names(images) + _names(masks), _sizes(images), _sizes(masks)
    if isinstance(train, ArraySplit) and isinstance(val, ArraySplit):
        return b"", _sizes([train.path, val.path]), train.labels.tobytes() + val.labels.tobytes()
    return b"", b"", b""


def _of_index(
    images: PartTable, mask_sizes: npt.NDArray[np.integer], labels: Labels, rows: Rows
) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a prepared set: its index has them, without a look at each sample."""
    sizes = np.stack([images.sizes[rows], mask_sizes[rows]])
    return images.rows[rows].tobytes(), sizes.tobytes(), labels[rows].astype(np.int32).tobytes()


def _both(train: Rows, val: Rows) -> Rows:
    return np.sort(np.concatenate([train, val]))


def _names(addresses: Sequence[str]) -> bytes:
    """Return the names relative to the common folder of the first and the last file."""
    files = [title_of(address) for address in addresses]
    start = len(os.path.commonpath([files[0], files[-1]])) + 1 if len(files) > 1 else 0
    return os.fsencode("\0".join(file[start:] for file in files))


def _sizes(files: Sequence[str]) -> bytes:
    """Return the size of each file in bytes, as int64."""
    sizes: npt.NDArray[np.int64] = np.empty(len(files), np.int64)

    def look(start: int) -> None:
        for place in range(start, min(start + _AT_ONCE, len(files))):
            try:
                sizes[place] = status_of(files[place])[0]
            except OSError:
                sizes[place] = -1

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(look, range(0, len(files), _AT_ONCE)):
            pass
    return sizes.tobytes()
