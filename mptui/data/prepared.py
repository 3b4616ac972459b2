"""A set that `mptui prepare` wrote: tar shards as WebDataset's, and beside them where each sample lies.

The folder of a set contains

    train-00000.tar, …       the samples: 00000000.jpg, and 00000000.cls or 00000000.seg.png; without a split
    val-00000.tar, …         of its own, a set has the first of them alone
    classes.txt              names of the classes 0, 1, …, one a line
    samples.npy              position, size and label of each sample, training half first; see `record_type`
    prepared.json            description of the set, size and sha256 of every other file; written last

An image is a JPEG (or a PNG), or the unchanged original file if that is small enough; a mask is a PNG with
the class index of each pixel, and the highest value of its bit depth for ignored pixels. So 1.2 million
photos for 224 px take some 40 GB; decoded they would take 300 GB. With the index, neither are the headers of
the tars read, nor any image, before the first epoch.

All entries of the index are checked against the sizes of the files: an untrusted set can't make a reader
leave the folder, allocate much memory, or run code.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mptui.data.address import MOST_BYTES
from mptui.data.dataset import FileSplit, MaskedSplit, PartTable, Rows
from mptui.data.masks import MAX_CLASSES, MaskCoding
from mptui.data.types import IGNORE, Problem, Sides
from mptui.errors import DataError
from mptui.io.files import open_regular, read_regular
from mptui.io.records import reader_of
from mptui.registry.names import SampleKind
from mptui.text import clean, clean_name

LAYOUT = "prepared set"
INDEX, SAMPLES, CLASSES = "prepared.json", "samples.npy", "classes.txt"
BEGUN = "preparing.json"
"""File that exists while the set is being prepared."""
FORMAT, VERSION = "mptui-prepared", 2

_TAR = re.compile(r"(train|val)-[0-9]{5}\.tar")
_MOST_INDEX_BYTES = 64 << 20
_MOST_CLASSES = 100_000
_BLOCK = 1 << 22
_AGAIN = "prepare it again: mptui prepare DATA"


@dataclass(frozen=True, slots=True)
class SetFile:
    """A file of a set, with its size in bytes."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SetDescription:
    """The contents of `prepared.json`."""

    format: str
    version: int
    key: str
    """Hash of everything that the set depends on."""
    name: str
    task: str
    classes: list[str]
    masks: bool
    """Whether the samples have masks, and no class."""
    image_size: int
    side: int
    """The shorter side in pixels that larger images were resized to."""
    quality: int
    """JPEG quality, 1 to 100; 0: PNG, lossless."""
    ignore_index: int | None
    count: int
    train_count: int | None
    """Number of training samples; None: the set has no validation half."""
    left_out: list[list[str]]
    """Path and reason of samples that could not be used; the first thousand."""
    warnings: list[str]
    samples: SetFile
    tars: list[SetFile]
    small_side: int | None = None
    """`small_side` of the files that it was prepared from; a set of an earlier version has none."""


@dataclass(frozen=True, slots=True)
class PreparedSet:
    """The checked index of a prepared set."""

    folder: Path
    about: SetDescription
    records: npt.NDArray[np.void]
    """[N] of `record_type`."""

    @property
    def kind(self) -> SampleKind:
        """Kind of the samples."""
        return _kind(self.about)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(map(clean_name, self.about.classes))

    @property
    def sides(self) -> Sides:
        """Shorter and longer sides of the stored images in pixels."""
        return np.stack([self.records["shorter"], self.records["longer"]], axis=1)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Samples left out when the set was prepared."""
        return tuple(Problem(clean_name(path), clean(reason)) for path, reason in self.about.left_out)

    def split(self, rows: Rows) -> FileSplit | MaskedSplit:
        """Return a split of some of the samples."""
        images = self._table("at", "size")
        if not self.about.masks:
            return FileSplit(images, self.records["label"].astype(np.int64), rows)
        masks = self._table("mask_at", "mask_size", " (mask)")
        return MaskedSplit(images, masks, _coding(self.classes), rows)

    def _table(self, at: str, size: str, suffix: str = "") -> PartTable:
        paths = [str(self.folder / tar.name) for tar in self.about.tars]
        files = tuple(zip(paths, paths, strict=True))
        of = self.records
        return PartTable(files, of["tar"], of["row"], of[at], of[size], suffix=suffix)


def record_type(mask_classes: int = 0) -> "np.dtype[np.void]":
    """Return the type of the entry of a sample in `samples.npy`.

    `row` is its number in the set that was prepared. With masks, the pixels of each class are counted, and
    last the ignored ones.
    """
    columns: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [
        ("tar", "<u4"), ("row", "<u4"), ("at", "<u8"), ("mask_at", "<u8"), ("size", "<u4"),
        ("mask_size", "<u4"), ("label", "<i4"), ("shorter", "<u2"), ("longer", "<u2"),
    ]  # fmt: skip
    return np.dtype([*columns, ("pixels", "<i8", (mask_classes + 1,))] if mask_classes else columns)


def is_prepared(path: str) -> bool:
    """Whether a folder is a prepared set.

    Raises:
        DataError: It is an incomplete one.
    """
    if os.path.isfile(os.path.join(path, INDEX)):
        return True
    if os.path.isfile(os.path.join(path, BEGUN)):
        raise DataError(
            f"{clean_name(path)}: an incomplete prepared set",
            hint="repeat its mptui prepare command, which continues where it stopped",
        )
    return False


def kind_of_prepared(path: str) -> SampleKind | None:
    """Return the kind of the samples of a prepared set; None if the folder is none.

    Raises:
        DataError: It is incomplete, of another version, or damaged.
    """
    return _kind(_description(Path(path))) if is_prepared(path) else None


def small_side_of_prepared(path: str) -> int | None:
    """Return the shorter side in pixels of a set of small images; None: a set of large ones, or of masks.

    Raises:
        DataError: It is of another version, or damaged.
    """
    return _description(Path(path)).small_side


def count_of_prepared(path: str) -> tuple[int, bool]:
    """Return the number of training samples, and whether they are split already; of others, of all samples.

    Raises:
        DataError: It is of another version, or damaged.
    """
    about = _description(Path(path))
    if about.masks:
        return 0, True
    return (about.count, False) if about.train_count is None else (about.train_count, True)


def ignored_value(classes: int) -> int:
    """Return the value of ignored mask pixels: the highest of 8 bits, or of 16 for many classes."""
    return 255 if classes <= 255 else 65_535


def open_prepared(path: str) -> PreparedSet:
    """Read the index of a prepared set and check it against the files.

    Raises:
        DataError: It is of another version, damaged, or incomplete.
    """
    folder = Path(path)
    about = _description(folder)
    for tar in about.tars:
        _check_size(folder, tar)
    prepared = PreparedSet(folder, about, _records(folder, about))
    _check_records(prepared)
    return prepared


def check_bytes(prepared: PreparedSet, on_progress: Callable[[int, int], None]) -> None:
    """Read every tar and check its sha256.

    Raises:
        DataError: A tar is damaged.
    """
    done, total = 0, sum(tar.bytes for tar in prepared.about.tars)

    def on_block(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, total)

    for tar in prepared.about.tars:
        _check_digest(prepared.folder, tar, on_block)


def _kind(about: SetDescription) -> SampleKind:
    """Return the kind of the samples; images of one class are images alone."""
    if about.masks:
        return SampleKind.MASK
    return SampleKind.CLASS if len(about.classes) > 1 else SampleKind.IMAGE


def _coding(classes: tuple[str, ...]) -> MaskCoding:
    """Return the mask coding of a prepared set: the index of each class."""
    numbers = tuple(range(len(classes)))
    return MaskCoding(classes, (*numbers, ignored_value(len(classes))), (*numbers, IGNORE))


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{clean_name(str(path))}: damaged: {why}", hint=_AGAIN)


def _description(folder: Path) -> SetDescription:
    path = folder / INDEX
    try:
        facts = json.loads(read_regular(path, _MOST_INDEX_BYTES, os.O_NOFOLLOW))
        if facts["format"] != FORMAT:
            raise ValueError(facts["format"])
        _check_version(path, facts)
        facts.setdefault("small_side", None)
        about: SetDescription = reader_of(SetDescription)(facts)
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise _damaged(path, "not the index of a prepared set") from error
    if not _is_sound(about):
        raise _damaged(path, "invalid entries")
    return about


def _check_version(path: Path, facts: dict[str, Any]) -> None:
    version, size = facts["version"], facts.get("image_size")
    if type(version) is int and version == 1:
        again = f"mptui prepare DATA --image-size {size}" if type(size) is int else "mptui prepare DATA"
        raise DataError(
            f"{clean_name(str(path.parent))}: prepared by an earlier mptui, in a format no longer read",
            hint=f"prepare the original images again: {again} --out NEW",
        )
    if type(version) is not int or version != VERSION:
        raise DataError(
            f"{clean_name(str(path))}: version {clean(str(version), 20)}, but this mptui reads {VERSION}",
            hint=f"update mptui, or {_AGAIN}",
        )


def _is_sound(about: SetDescription) -> bool:
    """Whether numbers are within their limits, and names are those of files of a set."""
    files, train = [about.samples, *about.tars], about.train_count
    least, most = (2, MAX_CLASSES) if about.masks else (1, _MOST_CLASSES)
    return (
        0 < about.count <= 1 << 31
        and (train is None or 0 < train < about.count)
        and (about.small_side is None or 0 < about.small_side <= about.side)
        and least <= len(about.classes) <= most
        and all(0 < side <= 1 << 16 for side in (about.side, about.image_size))
        and all(len(pair) == 2 for pair in about.left_out)
        and all(0 < file.bytes <= 1 << 50 for file in files)
        and about.samples.name == SAMPLES
        and all(_TAR.fullmatch(tar.name) for tar in about.tars)
    )


def _records(folder: Path, about: SetDescription) -> npt.NDArray[np.void]:
    """Check the array of the index and map it into memory."""
    path, expected = folder / SAMPLES, record_type(len(about.classes) if about.masks else 0)
    _check_size(folder, about.samples)
    _check_digest(folder, about.samples, lambda size: None)
    try:
        records: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, clean(str(error))) from error
    if records.dtype != expected or records.shape != (about.count,):
        raise _damaged(path, "not the array described in the index")
    return records


def _check_records(prepared: PreparedSet) -> None:
    """Refuse records that point outside the tars or have impossible values."""
    records, about, path = prepared.records, prepared.about, prepared.folder / SAMPLES
    if records["tar"].max() >= len(about.tars):
        raise _damaged(path, "it names a missing tar")
    ends = np.array([tar.bytes for tar in about.tars], np.uint64)[records["tar"]]
    sound = (records["label"] >= 0) & (records["label"] < len(about.classes))
    sound &= (records["shorter"] > 0) & (records["shorter"] <= records["longer"])
    for at, size in (("at", "size"), ("mask_at", "mask_size"))[: 1 + about.masks]:
        sound &= (records[size] > 0) & (records[size] <= MOST_BYTES) & (records[at] <= ends)
        sound &= records[size] <= ends - np.minimum(records[at], ends)
    if not sound.all():
        raise _damaged(path, f"sample {int(np.flatnonzero(~sound)[0])} lies outside its tar")


def _check_size(folder: Path, file: SetFile) -> None:
    path = folder / file.name
    try:
        found = path.lstat()
    except OSError as error:
        raise _damaged(path, (error.strerror or str(error)).lower()) from error
    if not stat.S_ISREG(found.st_mode):
        raise _damaged(path, "not a file")
    if found.st_size != file.bytes:
        raise _damaged(path, f"{found.st_size:,} bytes instead of {file.bytes:,}")


def _check_digest(folder: Path, file: SetFile, on_block: Callable[[int], None]) -> None:
    """Read a file and check its sha256; `on_block` is called with the bytes of each block."""
    path, digest = folder / file.name, hashlib.sha256()
    try:
        with _opened(path) as content:
            while block := content.read(_BLOCK):
                digest.update(block)
                on_block(len(block))
    except OSError as error:
        raise _damaged(path, (error.strerror or str(error)).lower()) from error
    if digest.hexdigest() != file.sha256:
        raise _damaged(path, "its bytes differ from those that were written")


def _opened(path: Path) -> IO[bytes]:
    """Open a file of the set, without following links."""
    return os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0)
