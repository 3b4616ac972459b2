"""Types of samples, of what a set was understood to be, and errors of reading. Imports no torch."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from mptui.data.address import title_of
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from mptui.text import clean_name

# Classifies system errors while reading a sample: transient ones, and those caused by the machine
# ------------------------------------------------------------------------------------------------
# A read with a transient error is retried a few times; if it still fails, the file is a bad sample. A
# machine without open files or memory left ends the run, since the files are not at fault. No torch here:
# workers import this.

T = TypeVar("T")

READ_ERROR = "read error: "
"""Prefix of reasons caused by the disk, not by the content of a file."""

_PASSING = frozenset(
    (
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENXIO),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNRESET),
        *(errno.ENOTCONN, errno.EREMOTEIO if hasattr(errno, "EREMOTEIO") else errno.EIO),
    )
)
_OF_THE_MACHINE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer --workers",
    errno.ENFILE: "the machine has too many open files: close other programs, or raise fs.file-max",
    errno.ENOMEM: "the machine is out of memory: close other programs, or use fewer --workers",
}
_PAUSES_S = (0.1, 0.4, 1.0)
_MOST_FUTILE = 5
"""Number of consecutive failed reads after which the disk counts as gone and nothing is retried."""


class _Patience:
    """Counts the consecutive failed retries of this process."""

    futile = 0


def reason_of(error: OSError) -> str:
    """Return the reason to show for a system error."""
    told = (error.strerror or str(error)).lower()
    return READ_ERROR + told if error.errno in _PASSING or error.errno in _OF_THE_MACHINE else told


def machine_fault(path: str, reason: str) -> DataError | None:
    """Return the error to raise if the machine caused `reason`; None if the file did."""
    for number, hint in _OF_THE_MACHINE.items():
        if reason == READ_ERROR + os.strerror(number).lower():
            return DataError(f"{clean_name(path)}: cannot read: {os.strerror(number).lower()}", hint=hint)
    return None


def tried_again(read: Callable[[], T]) -> T:
    """Call `read`, and retry it after a pause on a transient error.

    Raises:
        BadSampleError: All retries failed, or the error is not transient.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            found = read()
        except BadSampleError as error:
            if not error.reason.startswith(READ_ERROR):
                raise
            if pause_s is None or _Patience.futile >= _MOST_FUTILE:
                _Patience.futile += 1
                raise
            sleep(pause_s)
        else:
            _Patience.futile = 0
            return found
    raise AssertionError("the last of the tries returns or raises")


# What a set was understood to be: its layout, its split, its classes, its masks, and what was left out
# -----------------------------------------------------------------------------------------------------
# A reading is made once, when a set is opened, from all its files. It is what a person checks before the
# first epoch, so it names each decision that the names and contents of the files do not settle by
# themselves.


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files of a set that no split has, for one reason."""

    reason: str
    """A phrase that ends a sentence of the file: "is not an image by its name", "has no mask"."""
    files: Sequence[str]
    """Paths, or names of samples of packed files, in the order of the listing."""

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self.files)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a set was understood to be.

    Attributes:
        layout: Name of the format, a key of `FORMATS`; "built in" for a named set in files.
        split: Where the split comes from, as a phrase: "folders train and val".
        classes: Names of the classes.
        train_counts: Training samples of each class; with masks, pixels.
        val_counts: The same of validation; empty if they are not counted.
        mask_code: What a mask value or colour means, one phrase a class: "0: background", "255: ignored".
        orientation: How masks lie to photographs with an EXIF orientation; empty if there are none.
        test: Files of the test half, which a run does not read.
        left_out: All other files of the set, by reason.
        cleaned: What was made uniform, one sentence each: values of masks joined to classes.
    """

    layout: str
    split: str
    classes: tuple[str, ...]
    train_counts: tuple[int, ...] = ()
    val_counts: tuple[int, ...] = ()
    mask_code: tuple[str, ...] = ()
    orientation: str = ""
    test: Sequence[str] = ()
    left_out: tuple[LeftOut, ...] = ()
    cleaned: tuple[str, ...] = ()


# Types shared by the modules of `mptui.data`. Imports no torch, as workers import this
# -------------------------------------------------------------------------------------
# Shapes: H and W are pixels, C are the bands. Images are HWC in a `PixelFormat`, mostly uint8 RGB; masks
# int16 HW with class indices, and `IGNORE` for pixels that are ignored.

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
class SampleFormat:
    """What the samples of a split are."""

    kind: SampleKind
    """Whether they have a class, a mask, or neither."""
    num_classes: int
    """Samples with a larger label or value of a mask are bad."""
    pixels: PixelFormat = RGB
    labelled: bool = True
    """Whether the samples have targets; otherwise those of the batches are all 0."""

    @property
    def has_masks(self) -> bool:
        """Whether each sample has a mask."""
        return self.kind is SampleKind.MASK and self.labelled


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
        self.name = title_of(address)
        self.reason = reason
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
