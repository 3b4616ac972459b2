"""The known data formats on disk, and the detection of a path's format."""

import os

from mptui.data.formats.folder_format import FolderFormat, Found
from mptui.data.formats.image_folder import find_classes, find_images, find_pairs
from mptui.data.formats.layout import (
    CLASS_FOLDERS,
    IMAGES_AND_MASKS,
    check_folder,
    contents,
    find_halves,
    has_images,
    has_images_and_masks,
    has_subfolders,
    subfolders,
)
from mptui.data.formats.lists.columns import LAYOUT as LISTS
from mptui.data.formats.lists.image_list import find_in_list, offering, recognize_list
from mptui.data.formats.packed.open_packed import (
    PARQUET_FILES,
    TAR_SHARDS,
    find_in_parquet,
    find_in_shards,
    has_parquet,
    has_shards,
)
from mptui.data.formats.sharded import is_prepared, kind_of_prepared, open_prepared
from mptui.errors import DataError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name


def _is_prepared(path: str) -> SampleKind | None:
    return kind_of_prepared(path) if is_prepared(path) else None


def _has_pairs(path: str) -> SampleKind | None:
    train = find_halves(path, has_images_and_masks).train
    return SampleKind.MASK if has_images_and_masks(train) else None


def _has_classes(path: str) -> SampleKind | None:
    folders = subfolders(find_halves(path, has_subfolders).train).values()
    return SampleKind.CLASS if any(map(has_images, folders)) else None


def _has_images(path: str) -> SampleKind | None:
    return SampleKind.IMAGE if has_images(path) else None


def _find_in_class_folders(path: str, kind: SampleKind, *_: object) -> Found:
    return find_images(path) if kind is SampleKind.IMAGE else find_classes(path)


FORMATS: dict[str, FolderFormat] = {
    "prepared set": FolderFormat(
        "DATA/prepared.json, as mptui prepare writes it", _is_prepared, lambda path, *_: open_prepared(path)
    ),
    "images and masks": FolderFormat(IMAGES_AND_MASKS, _has_pairs, lambda path, *_: find_pairs(path)),
    "class folders": FolderFormat(CLASS_FOLDERS, _has_classes, _find_in_class_folders),
    "tar shards": FolderFormat(TAR_SHARDS, has_shards, find_in_shards),
    "Parquet files": FolderFormat(PARQUET_FILES, has_parquet, find_in_parquet),
    "list of images": FolderFormat(LISTS, recognize_list, find_in_list),
    "images alone": FolderFormat(
        "DATA/1.jpg, at any depth; images in classes can be used as images alone too",
        _has_images,
        lambda path, *_: find_images(path),
    ),
}
"""Name -> format, in the order of detection."""


def recognize(path: str) -> tuple[FolderFormat, SampleKind]:
    """Return the format of the data at `path`, and the kind of its samples.

    Raises:
        DataError: The path does not exist, can't be listed, or has no known format.
    """
    with offering(path):
        return _recognized(path)


def _recognized(path: str) -> tuple[FolderFormat, SampleKind]:
    if os.path.exists(path):  # noqa: PTH110 - pathlib raises for odd paths
        for known in FORMATS.values():
            if (kind := known.recognize(path)) is not None:
                return known, kind
    check_folder(path)
    width = max(map(len, FORMATS)) + 2
    layouts = "\n".join(f"  {f'{name}:':{width}}{known.layout}" for name, known in FORMATS.items())
    found = contents(find_halves(path, has_subfolders).train)
    raise DataError(
        f"{clean_name(path)}: no data of a known format\n{layouts}\n  found: {found}",
        hint="Give --data a folder that has one of these layouts.",
    )
