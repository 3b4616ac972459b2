"""What a network learns from: the facts of its data that give its inputs and its outputs their meaning.

They belong to the state of a run, and each checkpoint has those of its own weights: the data set of a run may
change after them. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mptui.data.types import DTYPES, RGB, Dataset, PixelFormat
from mptui.errors import DataError
from mptui.io.records import reader_of
from mptui.registry.names import SampleKind
from mptui.text import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedData:
    """The facts of the data that a network has learned from.

    Attributes:
        task: A key of `mptui.registry.tasks.TASKS`; None: not recorded.
        sample: Name of the kind of the samples in `SampleKind`; None: not recorded.
        classes: Names of the classes in the order of the network's outputs.
        class_counts: Training samples, or pixels, of each class; empty: not counted.
        bands: Number of bands of the images.
        dtype: Type of their values, one of `DTYPES`.
    """

    task: str | None = None
    sample: str | None = None
    classes: list[str] = field(default_factory=list)
    class_counts: list[int] = field(default_factory=list)
    bands: int = RGB.bands
    dtype: str = RGB.dtype

    @classmethod
    def of(cls, dataset: Dataset, task: str) -> "LearnedData":
        """Return the facts of a data set that is learned for a task."""
        return cls(
            task=task,
            sample=dataset.kind.name,
            classes=list(dataset.classes),
            class_counts=[int(count) for count in dataset.class_counts],
            bands=dataset.pixels.bands,
            dtype=dataset.pixels.dtype,
        )

    @classmethod
    def read(cls, record: object) -> "LearnedData":
        """Return the facts from a result of `record`.

        Raises:
            ValueError: It is none.
        """
        try:
            read: LearnedData = reader_of(cls)(record)
        except (TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"no facts of data: {error}") from error
        is_known = read.sample is None or read.sample in SampleKind.__members__
        is_readable = is_known and read.dtype in DTYPES and read.bands > 0
        if not is_readable or any(clean(name) != name for name in read.classes):
            raise ValueError("no facts of data")
        return read

    def record(self) -> dict[str, Any]:
        """Return the facts, JSON-ready."""
        return asdict(self)

    @property
    def pixels(self) -> PixelFormat:
        """The format of the images."""
        return PixelFormat(self.bands, self.dtype)

    def check(self, learned: "LearnedData") -> None:
        """Check that a network that has learned from `learned` can go on learning from this.

        Raises:
            DataError: It would misread it.
        """
        told = []
        if learned.task not in {None, self.task}:
            told.append(f"it is for {self.task}, and the network has learned {learned.task}")
        if learned.sample not in {None, self.sample}:
            told.append(f"it has {_words(self.sample)}, and the network has learned {_words(learned.sample)}")
        if self.pixels != learned.pixels:
            told.append(f"images have {self.pixels} instead of {learned.pixels}")
        if self.sample != SampleKind.IMAGE.name and self.classes != learned.classes:
            told.append(class_changes(learned.classes, self.classes))
        if told:
            raise DataError(
                f"this run can't go on with this data: {'; '.join(told)}",
                hint="restore the data, with the names that the classes had, or give --data FOLDER; "
                "or learn from it as it is now in a new run: mptui run",
            )


def class_changes(before: Sequence[str], now: Sequence[str]) -> str:
    """Describe how the names of classes have changed."""
    gone, new = ([name for name in a if name not in set(b)] for a, b in ((before, now), (now, before)))
    if not gone and not new:
        return "the classes are in another order"
    parts = ((gone, "gone"), (new, "new"))
    told = ", ".join(f"{len(names):,} {word} ({_some(names)})" for names, word in parts if names)
    return f"classes: {told}"


def _words(sample: str | None) -> str:
    return "" if sample is None else SampleKind[sample].value


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
