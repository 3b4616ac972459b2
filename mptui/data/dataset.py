"""Splits of files, masks and arrays, in little memory for any number of files; splits made of others."""

import os
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from mptui.data.address import part_of
from mptui.data.decode import ArrayRequest, FileRequest
from mptui.data.learned import LearnedData
from mptui.data.masks import MaskCoding, MaskedFileRequest
from mptui.data.transforms import DRAWS, Geometry, cut_image, resized, views
from mptui.data.types import (
    IGNORE,
    Dataset,
    Decoded,
    LabelledSplit,
    PixelFormat,
    SampleRequest,
    Split,
    check_class,
)
from mptui.registry.names import SampleKind

# Splits of datasets of files, masks and arrays, in little memory for any number of files
# ---------------------------------------------------------------------------------------

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]

_TAIL = 8
"""Bytes of a path that are its ending."""


class _Table(Sequence[str]):
    """Paths that are made when they are asked for."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._path(index)

    @abstractmethod
    def _path(self, index: int) -> str:
        """Return one path, from 0."""


class PathTable(_Table):
    """Stores many paths compactly: one block of text and the end of each path in it."""

    def __init__(self, paths: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for path in paths:
            text += os.fsencode(path)
            ends.append(len(text))
        self._text = bytes(text)
        self._ends = ends

    @classmethod
    def restored(cls, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> "PathTable":
        """Create a table from the result of `arrays`.

        Raises:
            ValueError: The arrays don't fit each other.
        """
        table = cls(())
        span_the_text = len(ends) > 0 and ends[0] == 0 and ends[-1] == len(text)
        if not span_the_text or (np.diff(ends) < 0).any():
            raise ValueError("ends outside the text")
        table._text = text.tobytes()
        table._ends = array("q", ends.astype(np.int64).tobytes())
        return table

    @classmethod
    def chained(cls, tables: Iterable["PathTable"]) -> "PathTable":
        """Return the paths of some tables, one table after the other, without a look at each path."""
        table, texts = cls(()), list[bytes]()
        for each in tables:
            ends = np.array(each._ends, np.int64)[1:] + table._ends[-1]
            table._ends.frombytes(ends.tobytes())
            texts.append(each._text)
        table._text = b"".join(texts)
        return table

    def arrays(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the table as two arrays."""
        return np.frombuffer(self._text, np.uint8), np.array(self._ends, np.int64)

    def mentions(self, words: Iterable[bytes]) -> bool:
        """Whether the paths hold any of some words in lower case; much faster than to look at each path."""
        text = self._text.lower()
        return any(word in text for word in words)

    def rows_of_rare_endings(self, share: float, kinds: int, of_each: int) -> npt.NDArray[np.int64]:
        """Return rows of paths that end as few others do, digits apart; without a look at each path.

        Args:
            share: Share of all paths that end alike, below which they are few.
            kinds: Largest number of endings; of more, those of most paths.
            of_each: Largest number of rows of each.
        """
        text, ends = self.arrays()
        if not len(self):
            return np.empty(0, np.int64)
        tails = np.empty((len(self), _TAIL), np.uint8)
        for place in range(_TAIL):
            tails[:, place] = text[np.maximum(ends[1:] - _TAIL + place, 0)]
        tails[(tails >= ord("0")) & (tails <= ord("9"))] = ord("0")
        codes = tails.view(np.uint64).ravel()
        known, counts = np.unique(codes, return_counts=True)
        few = np.flatnonzero(counts < share * len(self))
        chosen = known[few[np.argsort(-counts[few], kind="stable")][:kinds]]
        rows = [np.flatnonzero(codes == code)[:of_each] for code in chosen]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @override
    def _path(self, index: int) -> str:
        return os.fsdecode(self._text[self._ends[index] : self._ends[index + 1]])


@dataclass(frozen=True, slots=True)
class PartTable(_Table):
    """Addresses of parts of files, made when they are asked for: a table of millions is small."""

    files: tuple[tuple[str, str], ...]
    """The path of each file, and its name in messages."""
    of_file: npt.NDArray[np.integer]
    rows: npt.NDArray[np.integer]
    """Number of each sample in its file, or in its set."""
    at: npt.NDArray[np.integer]
    sizes: npt.NDArray[np.integer]
    names: PathTable | None = None
    """Name of each sample, empty if it has none; None: the row in eight digits."""
    suffix: str = ""
    """End of the names in messages."""

    def __len__(self) -> int:
        return len(self.rows)

    @override
    def _path(self, index: int) -> str:
        row = self.rows[index]
        name = f"{row:08d}" if self.names is None else self.names[index] or row
        file, title = self.files[self.of_file[index]]
        title = f"{title}:{name}{self.suffix}"
        return part_of(file, int(self.at[index]), int(self.sizes[index]), title)


class _FileRows:
    """Some rows of a table of image files."""

    __slots__ = ()
    paths: Sequence[str]
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def files(self) -> list[str]:
        """Paths of the images."""
        return [self.paths[row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class FileSplit(_FileRows):
    """Some rows of a table of image files, with the class of each row of the table."""

    paths: Sequence[str]
    labels: Labels
    rows: Rows
    stored: PixelFormat | None = None
    """The format in which files are read as they are stored; None: as 8-bit RGB."""

    def request(self, index: int) -> FileRequest:
        """Return the request for sample `index`."""
        row = int(self.rows[index])
        return FileRequest(self.paths[row], int(self.labels[row]), self.stored)

    @property
    def sample_labels(self) -> Labels:
        """See `LabelledSplit`."""
        return self.labels[self.rows]


@dataclass(frozen=True, slots=True)
class MaskedSplit(_FileRows):
    """Some rows of the tables of image files and mask files."""

    paths: Sequence[str]
    mask_paths: Sequence[str]
    coding: MaskCoding
    rows: Rows
    stored: PixelFormat | None = None
    """The format in which images are read as they are stored; None: as 8-bit RGB."""

    def request(self, index: int) -> MaskedFileRequest:
        """Return the request for sample `index`."""
        row = int(self.rows[index])
        return MaskedFileRequest(self.paths[row], self.mask_paths[row], self.coding, self.stored)


@dataclass(frozen=True, slots=True)
class ArraySplit:
    """All images of an `.npy` file, with their classes."""

    path: str
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def request(self, index: int) -> ArrayRequest:
        """Return the request for sample `index`."""
        return ArrayRequest(self.path, index, int(self.labels[index]))

    @property
    def sample_labels(self) -> Labels:
        """See `LabelledSplit`."""
        return self.labels


def split_by_class(labels: Labels, rows: Rows, val_fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Hold out a share of each class, chosen by the seed.

    A class of two or more samples has at least one in each half; a single sample is used for training.

    Args:
        labels: The class of each row of the table.
        rows: The rows to split.
        val_fraction: The share to hold out.
        seed: Selects the held-out rows.

    Returns:
        The training rows and the held-out rows, each ascending.
    """
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(labels[by_class])) + 1
    train, val = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for members in np.split(by_class, bounds):
        if not len(members):
            continue
        shuffled = np.random.default_rng([seed, int(labels[members[0]])]).permutation(members)
        held_out = min(max(round(len(members) * val_fraction), 1), len(members) - 1)
        val.append(shuffled[:held_out])
        train.append(shuffled[held_out:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(val))


# Splits made of others: two in one, renumbered classes, cut images. Workers import this: no torch
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedSplit:
    """The samples of one split, then those of another."""

    first: Split
    second: Split

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def request(self, index: int) -> SampleRequest:
        """Return the request for sample `index`."""
        count = len(self.first)
        return self.first.request(index) if index < count else self.second.request(index - count)


@dataclass(frozen=True, slots=True)
class RenumberedSplit:
    """A split whose class i is class `numbers[i]`."""

    split: Split
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.split)

    def request(self, index: int) -> "RenumberedRequest":
        """Return the request for sample `index`."""
        return RenumberedRequest(self.split.request(index), self.numbers)


@dataclass(frozen=True, slots=True)
class RenumberedLabels(RenumberedSplit):
    """A renumbered split that knows the classes of its samples without reading them."""

    labelled: LabelledSplit

    @property
    def sample_labels(self) -> npt.NDArray[np.int64]:
        """See `LabelledSplit`."""
        return np.array(self.numbers)[self.labelled.sample_labels]


def renumbered(split: Split, numbers: tuple[int, ...]) -> Split:
    """Return the split with class i as class `numbers[i]`."""
    if isinstance(split, FileSplit | ArraySplit):
        return replace(split, labels=np.array(numbers)[split.labels])
    if isinstance(split, LabelledSplit):
        return RenumberedLabels(split, numbers, split)
    return RenumberedSplit(split, numbers)


def in_learned_order(dataset: Dataset, learned: LearnedData) -> Dataset:
    """Return a data set with its classes numbered as a network has learned them, if their names are the same.

    Others are returned as they are.
    """
    theirs, ours = dataset.classes, learned.classes
    are_reordered = list(theirs) != ours and sorted(theirs) == sorted(ours)
    if dataset.kind is SampleKind.IMAGE or not are_reordered:
        return dataset
    numbers = tuple(ours.index(name) for name in theirs)
    return replace(
        dataset,
        classes=tuple(ours),
        train=renumbered(dataset.train, numbers),
        val=renumbered(dataset.val, numbers),
        class_counts=[dataset.class_counts[theirs.index(name)] for name in ours]
        if dataset.class_counts
        else (),
    )


@dataclass(frozen=True, slots=True)
class RenumberedRequest:
    """A request whose label or mask is renumbered."""

    request: SampleRequest
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.request.name

    def read(self, side_hint: int | None = None) -> Decoded:
        """Read the sample; see `SampleRequest.read`."""
        sample, count = self.request.read(side_hint), len(self.numbers)
        if sample.mask_HW is None:
            check_class(self.name, sample.label, "label", count)
            return replace(sample, label=self.numbers[sample.label])
        check_class(self.name, int(sample.mask_HW.max()), "mask value", count)
        table = np.array([*self.numbers, IGNORE], np.int16)  # IGNORE, -1, is the last place
        return replace(sample, mask_HW=table[sample.mask_HW])


@dataclass(frozen=True, slots=True)
class CutSplit:
    """Some samples of a split, without labels, as the squares that a network sees in validation."""

    split: Split
    indices: npt.NDArray[np.int64]
    geometry: Geometry

    def __len__(self) -> int:
        return len(self.indices)

    def request(self, index: int) -> "CutRequest":
        """Return the request for sample `index`."""
        return CutRequest(self.split.request(int(self.indices[index])), self.geometry)


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A request whose image is cut; its geometry has no random crops."""

    request: SampleRequest
    geometry: Geometry

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.request.name

    def read(self, _side_hint: int | None = None) -> Decoded:
        """Read the sample; see `SampleRequest.read`."""
        cut = self.geometry
        image_HWC = resized(self.request.read(cut.resize), cut.resize, cut.interpolation).image_HWC
        height, width = map(float, image_HWC.shape[:2])
        boxes_14, flips_13 = views(cut, np.zeros((1, DRAWS)), np.array([width]), np.array([height]))
        return Decoded(
            cut_image(image_HWC, boxes_14[0], flips_13[0], cut.side, interpolation=cut.interpolation)
        )
