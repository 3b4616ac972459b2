"""Finds the image files that a person names: files, folders, patterns. Imports no torch."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mptui.data.core.types import PixelFormat
from mptui.data.formats.folders.folder_walk import walk_images
from mptui.data.formats.splits import FileSplit, PathTable
from mptui.errors import DataError
from mptui.text import clean_name


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Image files without labels.

    Attributes:
        paths: The files, each once, as they were named.
        folder: The absolute folder that all inputs lie in.
    """

    paths: Sequence[str]
    folder: str

    def split(self, stored: PixelFormat | None) -> FileSplit:
        """Return the files as samples, all of class 0; `stored` is the format of files with bands."""
        count = len(self.paths)
        return FileSplit(self.paths, np.zeros(count, np.int64), np.arange(count), stored)

    def relative(self, index: int) -> str:
        """Return the path of a file from `folder`."""
        return os.path.relpath(os.path.abspath(self.paths[index]), self.folder)  # noqa: PTH100


def find_inputs(inputs: Sequence[str]) -> InputFiles:
    """Find the images of inputs, in their order.

    Args:
        inputs: Files; folders, of which all images at any depth are taken; and patterns (`*`, `?`, `[…]`, and
            `**` for any depth).

    Raises:
        DataError: An input does not exist or can't be listed, or there is no image.
    """
    roots: list[str] = []
    found = {os.path.abspath(path): path for given in inputs for path in _files(given, roots)}  # noqa: PTH100
    paths = PathTable(found.values())
    if not len(paths):
        raise DataError(
            f"{', '.join(map(clean_name, inputs))}: no images", hint="give image files, or folders of images"
        )
    return InputFiles(paths, os.path.commonpath(roots))


def _files(given: str, roots: list[str]) -> Iterator[str]:
    """Yield the images of one input; append the folder that it stands for to `roots`."""
    named = os.path.expanduser(given)  # noqa: PTH111 - paths stay as they are written
    matches = [named] if os.path.lexists(named) else sorted(glob.glob(named, recursive=True))  # noqa: PTH207
    if not matches:
        raise DataError(
            f"{clean_name(given)}: no such file or folder",
            hint="check the path; quote a pattern for mptui to expand it",
        )
    for path in matches:
        absolute = os.path.abspath(path)  # noqa: PTH100 - links stay
        if os.path.isdir(path):  # noqa: PTH112
            roots.append(absolute)
            yield from walk_images(path)
        else:
            roots.append(os.path.dirname(absolute))  # noqa: PTH120
            yield path
