"""Types shared by the modules of `mptui.data`. Imports no torch, as workers import this.

Shapes: H and W are pixels, C are the bands. Images are HWC in a `PixelFormat`, mostly uint8 RGB; masks int16
HW with class indices, and `IGNORE` for pixels that are ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mptui.data.core.parts import title_of
from mptui.data.core.reading import Reading
from mptui.registry.samples import SampleKind

IGNORE = -1

Pixels = npt.NDArray[Any]
"""An image [H, W, C], in one of `DTYPES`."""
Mask = npt.NDArray[np.int16]
Sides = npt.NDArray[np.uint16]
"""[N, 2]: the shorter and the longer side of images in pixels."""


DTYPES = ("uint8", "uint16", "int16", "float32")
"""Types of values that images may have: float32 holds each of them exactly."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """The number of bands of an image, and the type of their values: one of `DTYPES`."""

    bands: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of a pixel."""
        return self.bands * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.bands} band{'s' * (self.bands != 1)} of {self.dtype}"


RGB = PixelFormat(3, "uint8")
"""The format of photographs."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded sample: an image and its label or its mask."""

    image_HWC: Pixels
    label: int = 0
    mask_HW: Mask | None = None


class SampleRequest(Protocol):
    """Protocol of a request that reads one sample: small, picklable, valid in any process."""

    @property
    def name(self) -> str:
        """The name of the sample in messages: its path, or its index in a set."""

    def read(self, side_hint: int | None = None) -> Decoded:
        """Read the sample.

        Args:
            side_hint: The shorter side may be decoded down to about this many pixels (never below) if the
                format makes that cheaper; None: full size.

        Raises:
            BadSampleError: The file is missing, truncated, not an image, too large, or has no valid mask.
        """


class BadSampleError(Exception):
    """A sample that can't be used; `reason` is a short explanation."""

    def __init__(self, address: str, reason: str) -> None:
        self.name, self.reason = title_of(address), reason
        super().__init__(f"{self.name}: {reason}")

    def __reduce__(self) -> tuple[type["BadSampleError"], tuple[str, str]]:
        """Pickle with name and reason, to pass between processes."""
        return (BadSampleError, (self.name, self.reason))


def check_class(name: str, value: int, what: str, classes: int) -> None:
    """Refuse a class without an output of the network, as the loss would fail with a device-side assert.

    Raises:
        BadSampleError: The value of a label or a mask is not below the number of classes.
    """
    if value >= classes:
        raise BadSampleError(name, f"{what} {value}, but there are {classes} classes")


class Split(Protocol):
    """The training or the validation half of a dataset."""

    def __len__(self) -> int:
        """Return the number of usable samples."""

    def request(self, index: int) -> SampleRequest:
        """Return the request for sample `index`."""


@runtime_checkable
class LabelledSplit(Split, Protocol):
    """A split that knows the classes of its samples without reading them."""

    @property
    def sample_labels(self) -> npt.NDArray[np.int64]:
        """The class of each sample, [N]."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that can't be used, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A scanned dataset."""

    name: str
    kind: SampleKind
    classes: tuple[str, ...]
    train: Split
    val: Split
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    has_ignored: bool = False
    class_counts: Sequence[int] = ()
    """Training samples of each class; with masks, training pixels."""
    sides: tuple[int, int, int] | None = None
    """Shorter sides of the images in pixels: smallest, median, largest."""
    held_out: bool = False
    """Whether the validation half was held out from a set that has none, by `data.val_fraction`."""
    sizes: tuple[Sides, Sides] | None = None
    """Sides of the training and validation images; None: all images are squares of `sides`."""
    pixels: PixelFormat = RGB
    """The format of all images."""
    draws: bool = False
    """Whether samples draw random numbers when they are read, so that they are others in each epoch."""
    reading: Reading | None = None
    """What the set was understood to be; None: a person's own, or a built-in one."""
