"""Splits made of others: two in one, renumbered classes, cut images. Workers import this: no torch."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mptui.data.core.learned import LearnedData
from mptui.data.core.types import (
    IGNORE,
    Dataset,
    Decoded,
    LabelledSplit,
    SampleRequest,
    Split,
    check_class,
)
from mptui.data.formats.splits import ArraySplit, FileSplit
from mptui.data.transforms.crop import DRAWS, Geometry, cut_image, views
from mptui.data.transforms.resize import resized
from mptui.registry.samples import SampleKind


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
    if dataset.kind is SampleKind.IMAGE or list(theirs) == ours or sorted(theirs) != sorted(ours):
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
        return Decoded(cut_image(image_HWC, boxes_14[0], flips_13[0], cut.side, cut.interpolation))
