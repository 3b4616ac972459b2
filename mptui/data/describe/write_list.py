"""Writes what a set was understood to be as a list of images, which one may correct and train on."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from mptui.data.core.parts import is_part, joined_files
from mptui.data.core.types import Dataset, Split
from mptui.data.formats.splits import FileSplit, MaskedSplit
from mptui.errors import DataError
from mptui.registry.samples import SampleKind

Row = tuple[str, str, str]
"""An image, its label or mask, and its split."""


def list_text(dataset: Dataset, out: Path) -> str:
    """Return a set as CSV, of paths from the folder of `out` if they are in it.

    Raises:
        DataError: Its images are not files, or have names that are not in UTF-8.
    """
    folder = os.path.abspath(out.parent)
    target = {SampleKind.CLASS: "label", SampleKind.MASK: "mask", SampleKind.IMAGE: ""}[dataset.kind]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [place for place, name in enumerate(("image", target, "split")) if name]
    writer.writerow([("image", target, "split")[place] for place in columns])
    for row in _rows(dataset):
        cells = (
            _from(folder, row[0]),
            _from(folder, row[1]) if target == "mask" and row[1] else row[1],
            row[2],
        )
        writer.writerow([cells[place] for place in columns])
    try:
        text.getvalue().encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{dataset.name}: a file has a name that is not in UTF-8", hint="Rename it: a list is in UTF-8."
        ) from error
    return text.getvalue()


def _rows(dataset: Dataset) -> Iterator[Row]:
    for split, word in ((dataset.train, "train"), (dataset.val, "val")):
        for image, target in _samples(dataset, split):
            yield image, target, word
    for image in () if dataset.reading is None else dataset.reading.test:
        yield image, "", "test"


def _samples(dataset: Dataset, split: Split) -> Iterator[tuple[str, str]]:
    if not isinstance(split, FileSplit | MaskedSplit) or (
        len(split) and is_part(split.paths[int(split.rows[0])])
    ):
        raise DataError(
            f"{dataset.name}: its images are not files of their own, which a list can name",
            hint="Train on it as it is, or unpack it first.",
        )
    for row in split.rows.tolist():
        if isinstance(split, MaskedSplit):
            if len(joined_files(split.mask_paths[row])) > 1:
                raise DataError(
                    f"{dataset.name}: {split.paths[row]} has several masks, of which a list can name one",
                    hint="Train on it as it is, or join the masks of each image into one file.",
                )
            yield split.paths[row], split.mask_paths[row]
        else:
            yield split.paths[row], dataset.classes[int(split.labels[row])]


def _from(folder: str, path: str) -> str:
    path = os.path.abspath(path)
    return os.path.relpath(path, folder) if path.startswith(folder.rstrip("/") + "/") else path
