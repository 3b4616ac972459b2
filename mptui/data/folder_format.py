"""Definition of a data format on disk, and of the list of samples that it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.dataset import Labels
from mptui.data.masks import MaskCoding
from mptui.data.prepared import PreparedSet
from mptui.data.scan import OnProgress, ShouldStop
from mptui.data.types import LeftOut, Problem
from mptui.registry.names import SampleKind


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a dataset, before any is opened: training rows first, then validation rows."""

    images: Sequence[str]
    """Paths of the images. A `PathTable` holds millions in little memory."""
    train_rows: int
    """Number of training rows; all rows if there is no validation half."""
    classes: tuple[str, ...] = ()
    labels: Labels | None = None
    """The class of each row; None if there are masks."""
    masks: Sequence[str] | None = None
    coding: MaskCoding | None = None
    """Coding of the masks, if it is known in advance."""
    class_file: Path | None = None
    void: int | None = None
    """The mask value that is no class in sets of this layout."""
    unpaired: tuple[Problem, ...] = ()
    """Samples that can't be used, known before an image is opened: those without a mask, or a label."""
    warnings: tuple[str, ...] = ()
    layout: str = ""
    """Name of the format, if it is not that of its entry in `FORMATS`."""
    split: str = ""
    """Where the split comes from, as a phrase; empty: one half is held out by the seed."""
    test: Sequence[str] = ()
    """Files of the test half."""
    left_out: tuple[LeftOut, ...] = ()
    """All other files of the set, by reason."""


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format of data on disk.

    Attributes:
        layout: Short description for messages; DATA stands for the value of `--data`.
        recognize: Called with the path of an existing folder or file. Returns the kind of its samples, or
            the kinds that they can be read as, or None if the path has another format. Reads names only. May
            raise a `DataError` for data of this format that can't be used.
        find: Called with such a path, the requested kind of samples (the recognized kind, or images alone
            for images in classes), the callbacks of a scan, for a list that takes long, and the settings.
            Lists the samples, or opens the index of a prepared set. Raises a `DataError` if there are none.
        ending: How its files end, if they hold many samples each.
    """

    layout: str
    recognize: Callable[[str], SampleKind | tuple[SampleKind, ...] | None]
    find: Callable[[str, SampleKind, OnProgress, ShouldStop, DataConfig], Found | PreparedSet]
    ending: str = ""
