"""What a set was understood to be: its layout, its split, its classes, its masks, and what was left out.

A reading is made once, when a set is opened, from all its files. It is what a person checks before the first
epoch, so it names each decision that the names and contents of the files do not settle by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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
