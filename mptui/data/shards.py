"""A prepared set on disk: every image resized once and stored in a few large files.

The folder of a set contains

    prepared.json            description of the set, size and sha256 of every other file; written last
    samples.npy              position, size, label of each sample: an array of `RECORD`, training half first
    pixels.npy               masks only: pixels of each class per mask, and last the ignored ones
    samples-00000.tar, …     the samples: WebDataset shards, which `tar -x` unpacks

An image is a JPEG (or a PNG), or the unchanged original file if that is small enough; a mask is a PNG with
the class index of each pixel, and the highest value of its bit depth for ignored pixels. So 1.2 million
photos for 224 px take some 40 GB; decoded they would take 300 GB.

The index has no file names, and all its entries are checked against the sizes of the files: an untrusted set
can't make a reader leave the folder, allocate much memory, or run code. Imports no torch, as workers import
this.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mptui.data.dataset import Labels, Rows
from mptui.data.decode import load_upright, opened, read_rgb
from mptui.data.masks import MAX_CLASSES, MaskCoding, mask_classes
from mptui.data.transforms import resized_mask
from mptui.data.types import IGNORE, BadSampleError, Decoded, Mask, Problem, Sides, reason_of
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from mptui.text import clean, clean_name

INDEX, SAMPLES, PIXELS = "prepared.json", "samples.npy", "pixels.npy"
BEGUN = "preparing.json"
"""File that exists while the set is being prepared."""
FORMAT, VERSION = "mptui-prepared", 1
RECORD = np.dtype(
    [
        ("shard", "<u4"),
        ("row", "<u4"),
        ("at", "<u8"),
        ("mask_at", "<u8"),
        ("size", "<u4"),
        ("mask_size", "<u4"),
        ("label", "<i4"),
        ("shorter", "<u2"),
        ("longer", "<u2"),
    ]
)
MOST_BYTES = 256 << 20
"""Largest file of an image or mask, larger than any that can be decoded."""

_MOST_INDEX_BYTES = 64 << 20
_MOST_CLASSES = 100_000
_BLOCK = 1 << 22
_AGAIN = "Prepare it again: mptui prepare DATA."


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The position of a sample in a shard, and its label or mask."""

    shard: str
    row: int
    at: int
    size: int
    label: int
    mask_at: int = 0
    mask_size: int = 0
    coding: MaskCoding | None = None

    @property
    def name(self) -> str:
        """Path of the shard, and row of the sample."""
        return f"{self.shard}:{self.row:08d}"

    def read(self, side_hint: int | None = None) -> Decoded:
        """Decode the image, and its mask at the same size; see `SampleRequest.read`."""
        image_HWC = read_rgb(self.name, side_hint, self._content(self.at, self.size))
        if self.coding is None:
            return Decoded(image_HWC, self.label)
        return Decoded(image_HWC, mask_HW=self._mask(self.coding, image_HWC.shape[0], image_HWC.shape[1]))

    def _mask(self, coding: MaskCoding, height: int, width: int) -> Mask:
        with opened(self.name, self._content(self.mask_at, self.mask_size)) as file:
            mask_HW = mask_classes(self.name, load_upright(file)[0], coding)
        return resized_mask(mask_HW, height, width)

    def _content(self, at: int, size: int) -> bytes:
        try:
            content = os.pread(_shard(self.shard).fileno(), size, at)
        except OSError as error:
            raise BadSampleError(self.name, reason_of(error)) from error
        if len(content) < size:
            raise BadSampleError(self.name, "truncated: the end of the file is missing")
        return content


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """Some samples of a prepared set."""

    folder: str
    records: npt.NDArray[np.void]
    rows: Rows
    coding: MaskCoding | None

    def __len__(self) -> int:
        return len(self.rows)

    def request(self, index: int) -> PreparedRequest:
        """Return the request for sample `index`."""
        shard, row, at, mask_at, size, mask_size, label, _, _ = self.records[self.rows[index]].item()
        path = f"{self.folder}{os.sep}{shard_name(shard)}"
        return PreparedRequest(path, row, at, size, label, mask_at, mask_size, self.coding)

    @property
    def sample_labels(self) -> Labels:
        """See `LabelledSplit`."""
        return self.records["label"][self.rows].astype(np.int64)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The checked index of a prepared set."""

    folder: Path
    facts: dict[str, Any]
    records: npt.NDArray[np.void]
    pixels: npt.NDArray[np.int64] | None
    """[N, K + 1]: pixels of each class, and last the ignored ones."""

    @property
    def kind(self) -> SampleKind:
        """Kind of the samples."""
        return _kind(self.facts)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(clean_name(name) for name in self.facts["classes"])

    @property
    def labels(self) -> Labels:
        """The class of each sample."""
        return self.records["label"].astype(np.int64)

    @property
    def sides(self) -> Sides:
        """Shorter and longer sides of the stored images in pixels."""
        return np.stack([self.records["shorter"], self.records["longer"]], axis=1)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Samples left out when the set was prepared."""
        return tuple(Problem(clean_name(path), clean(reason)) for path, reason in self.facts["left_out"])

    def split(self, rows: Rows) -> PreparedSplit:
        """Return a split of some of the samples."""
        coding = None if self.pixels is None else coding_of(self.classes)
        return PreparedSplit(str(self.folder), self.records, rows, coding)


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
            hint="Repeat its mptui prepare command, which continues where it stopped.",
        )
    return False


def kind_of_prepared(path: str) -> SampleKind:
    """Return the kind of the samples of a prepared set.

    Raises:
        DataError: It is of a newer version, or damaged.
    """
    return _kind(_facts(Path(path)))


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"samples-{number:05d}.tar"


def coding_of(classes: tuple[str, ...]) -> MaskCoding:
    """Return the mask coding of a prepared set: the index of each class."""
    numbers = tuple(range(len(classes)))
    return MaskCoding(classes, (*numbers, ignored_value(len(classes))), (*numbers, IGNORE))


def ignored_value(classes: int) -> int:
    """Return the value of ignored mask pixels: the highest of 8 bits, or of 16 for many classes."""
    return 255 if classes <= 255 else 65_535


def open_prepared(path: str) -> ShardIndex:
    """Read the index of a prepared set and check it against the files.

    Raises:
        DataError: It is of a newer version, damaged, or incomplete.
    """
    folder = Path(path)
    facts = _facts(folder)
    classes = len(facts["classes"])
    masked = "pixels" in facts
    records = _array(folder, SAMPLES, facts["samples"], RECORD, shape=(facts["count"],))
    pixels = None
    if masked:
        pixels = _array(folder, PIXELS, facts["pixels"], np.dtype("<i8"), shape=(facts["count"], classes + 1))
    sizes = np.array([shard["bytes"] for shard in facts["shards"]], np.uint64)
    for number, shard in enumerate(facts["shards"]):
        _check_size(folder / shard_name(number), shard["bytes"])
    _check_records(folder, records, sizes, classes, masked=masked)
    return ShardIndex(folder, facts, records, pixels)


def check_bytes(prepared: ShardIndex, on_progress: Callable[[int, int], None]) -> None:
    """Read every shard and check its sha256.

    Raises:
        DataError: A shard is damaged.
    """
    shards = prepared.facts["shards"]
    done, total = 0, sum(shard["bytes"] for shard in shards)
    for number, shard in enumerate(shards):
        path, digest = prepared.folder / shard_name(number), hashlib.sha256()
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                done += len(block)
                on_progress(done, total)
        if digest.hexdigest() != shard["sha256"]:
            raise damaged(path, "its bytes differ from those that were written")


def damaged(path: Path, why: str) -> DataError:
    """Return the error for a damaged set."""
    return DataError(f"{clean_name(str(path))}: damaged: {why}", hint=_AGAIN)


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        with _opened(path) as file:
            text = file.read(_MOST_INDEX_BYTES + 1)
        facts = json.loads(text) if len(text) <= _MOST_INDEX_BYTES else None
    except (OSError, ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise damaged(path, "not the index of a prepared set")
    version = facts.get("version")
    if type(version) is not int or version > VERSION:
        raise DataError(
            f"{clean_name(str(path))}: version {clean(str(version), 20)}, but this mptui reads {VERSION}",
            hint=f"Update mptui. {_AGAIN}",
        )
    if version < 1 or not _sound(facts):
        raise damaged(path, "invalid entries")
    return facts


def _sound(facts: dict[str, Any]) -> bool:
    """Whether all entries exist and have the right type."""
    files = facts.get("shards")
    if not isinstance(files, list):
        return False
    files = [
        *files,
        facts.get("samples"),
        *([facts["pixels"]] if "pixels" in facts else []),
    ]
    count, train = facts.get("count"), facts.get("train_count")
    classes, left_out = facts.get("classes"), facts.get("left_out")
    return (
        isinstance(facts.get("name"), str)
        and isinstance(facts.get("task"), str)
        and _is_count(facts.get("side"), 1 << 16)
        and _is_count(count, 1 << 31)
        and "train_count" in facts
        and (train is None or (_is_count(train, 1 << 31) and train < count))
        and _are_texts(classes)
        and 1 <= len(facts["classes"]) <= (MAX_CLASSES if "pixels" in facts else _MOST_CLASSES)
        and ("pixels" not in facts or len(facts["classes"]) > 1)
        and _are_texts(facts.get("warnings"))
        and _is_count(facts.get("image_size"), 1 << 16)
        and isinstance(left_out, list)
        and all(_are_texts(pair) and len(pair) == 2 for pair in left_out)
        and all(
            isinstance(file, dict)
            and _is_count(file.get("bytes"), 1 << 50)
            and isinstance(file.get("sha256"), str)
            for file in files
        )
    )


def _kind(facts: dict[str, Any]) -> SampleKind:
    """Return the kind of the samples: masks if pixels are counted; images of one class are images alone."""
    if "pixels" in facts:
        return SampleKind.MASK
    return SampleKind.CLASS if len(facts["classes"]) > 1 else SampleKind.IMAGE


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _array(
    folder: Path, name: str, facts: dict[str, Any], dtype: "np.dtype[Any]", *, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Check an array of the index and map it into memory."""
    path = folder / name
    _check_size(path, facts["bytes"])
    digest = hashlib.sha256()
    try:
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != facts["sha256"]:
            raise damaged(path, "its bytes differ from those that were written")
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, clean(str(error))) from error
    if array.dtype != dtype or array.shape != shape:
        raise damaged(path, "not the array described in the index")
    return array


def _check_records(
    folder: Path, records: npt.NDArray[np.void], sizes: npt.NDArray[np.uint64], classes: int, *, masked: bool
) -> None:
    """Refuse records that point outside the shards or have impossible values."""
    if records["shard"].max() >= len(sizes):
        raise damaged(folder / SAMPLES, "it names a missing shard")
    ends = sizes[records["shard"]]
    places = [("at", "size"), *([("mask_at", "mask_size")] if masked else [])]
    sound = (records["label"] >= 0) & (records["label"] < classes)
    sound &= (records["shorter"] > 0) & (records["shorter"] <= records["longer"])
    for at, size in places:
        sound &= (records[size] > 0) & (records[size] <= MOST_BYTES) & (records[at] <= ends)
        sound &= records[size] <= ends - np.minimum(records[at], ends)
    if not sound.all():
        raise damaged(folder / SAMPLES, f"sample {int(np.flatnonzero(~sound)[0])} lies outside its shard")


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise damaged(path, (error.strerror or str(error)).lower()) from error
    if not stat.S_ISREG(found.st_mode):
        raise damaged(path, "not a file")
    if found.st_size != size:
        raise damaged(path, f"{found.st_size:,} bytes instead of {size:,}")


@lru_cache(maxsize=256)
def _shard(path: str) -> IO[bytes]:
    """Open a shard, once per process."""
    return _opened(Path(path))


def _opened(path: Path) -> IO[bytes]:
    """Open a file of the set, without following links."""
    return os.fdopen(
        os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)), "rb", buffering=0
    )
