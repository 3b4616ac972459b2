"""What a format of data on disk consists of, and the list of samples that it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptui.data.core.types import Problem
from mptui.data.decode.mask import MaskCoding
from mptui.data.formats.sharded import ShardIndex
from mptui.data.formats.splits import Labels
from mptui.registry.samples import SampleKind


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a dataset, before any is opened: rows of the training half first, then of validation."""

    images: Sequence[str]
    """Paths. A `PathTable` holds millions in little memory."""
    train_rows: int
    """How many rows belong to training; all of them where there is no validation half."""
    classes: tuple[str, ...] = ()
    labels: Labels | None = None
    """The class of each row; None where there are masks."""
    masks: Sequence[str] | None = None
    coding: MaskCoding | None = None
    """How the masks are coded, where that is known beforehand."""
    class_file: Path | None = None
    unpaired: tuple[Problem, ...] = ()
    """Images that have no mask."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format of data on disk.

    Attributes:
        layout: How it looks, in a few words for a person; DATA stands for what `--data` names.
        recognize: Called with a path that exists, a folder or a file. Returns the kind of the samples there,
            or None where the path is of another format. Looks at names only. May raise a `DataError` for data
            that is of this format and can't be used.
        find: Called with such a path and the kind of samples that is wanted: the recognized one, or images
            alone of images in classes. Lists the samples, or opens the index of a prepared set. Raises a
            `DataError` where there are none.
    """

    layout: str
    recognize: Callable[[str], SampleKind | None]
    find: Callable[[str, SampleKind], Found | ShardIndex]
