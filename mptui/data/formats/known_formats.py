"""The known data formats on disk, and the detection of a path's format."""

import os

from mptui.config.schema import DataConfig
from mptui.data.formats.folder_format import FolderFormat, Found
from mptui.data.formats.folders.class_folders import (
    class_halves,
    find_classes,
    find_images,
    names_are_classes,
)
from mptui.data.formats.folders.folder_walk import has_images
from mptui.data.formats.folders.image_pairs import find_masks_beside, find_pairs
from mptui.data.formats.folders.masks_beside import has_masks_beside
from mptui.data.formats.folders.pair_folders import has_pairs
from mptui.data.formats.layout import (
    CLASS_FOLDERS,
    IMAGES_AND_MASKS,
    check_folder,
    contents,
    find_halves,
    has_subfolders,
)
from mptui.data.formats.lists.columns import LAYOUT as LISTS
from mptui.data.formats.lists.image_list import find_in_list, offering, recognize_list
from mptui.data.formats.packed.open_packed import (
    PARQUET,
    PARQUET_FILES,
    TAR,
    TAR_SHARDS,
    find_in_parquet,
    find_in_shards,
    has_parquet,
    has_shards,
)
from mptui.data.formats.sharded import is_prepared, kind_of_prepared, open_prepared
from mptui.data.scan.scan import OnProgress, ShouldStop
from mptui.errors import DataError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name


def _is_prepared(path: str) -> SampleKind | None:
    return kind_of_prepared(path) if is_prepared(path) else None


def _has_pairs(path: str) -> SampleKind | None:
    return SampleKind.MASK if has_pairs(path) else None


def _has_classes(path: str) -> SampleKind | None:
    return SampleKind.CLASS if names_are_classes(class_halves(path).train) else None


def _has_images(path: str) -> SampleKind | None:
    return SampleKind.IMAGE if has_images(path) else None


def _has_masks_beside(path: str) -> tuple[SampleKind, ...] | None:
    if not has_masks_beside(path):
        return None
    return (SampleKind.CLASS if _has_classes(path) else SampleKind.IMAGE, SampleKind.MASK)


def _find_in_class_folders(
    path: str, kind: SampleKind, _on_progress: OnProgress, _should_stop: ShouldStop, data: DataConfig
) -> Found:
    return find_images(path) if kind is SampleKind.IMAGE else find_classes(path, data)


def _find_with_masks_beside(
    path: str, kind: SampleKind, on_progress: OnProgress, should_stop: ShouldStop, data: DataConfig
) -> Found:
    if kind is SampleKind.MASK:
        return find_masks_beside(path)
    return _find_in_class_folders(path, kind, on_progress, should_stop, data)


FORMATS: dict[str, FolderFormat] = {
    "prepared set": FolderFormat(
        "DATA/prepared.json, as mptui prepare writes it", _is_prepared, lambda path, *_: open_prepared(path)
    ),
    "images and masks": FolderFormat(IMAGES_AND_MASKS, _has_pairs, lambda path, *_: find_pairs(path)),
    "masks beside images": FolderFormat(
        "DATA/1.png and DATA/1_mask.png, also in class folders", _has_masks_beside, _find_with_masks_beside
    ),
    "class folders": FolderFormat(CLASS_FOLDERS, _has_classes, _find_in_class_folders),
    "tar shards": FolderFormat(TAR_SHARDS, has_shards, find_in_shards, TAR),
    "Parquet files": FolderFormat(PARQUET_FILES, has_parquet, find_in_parquet, PARQUET),
    "list of images": FolderFormat(LISTS, recognize_list, find_in_list),
    "images alone": FolderFormat(
        "DATA/1.jpg, at any depth; images in classes can be used as images alone too",
        _has_images,
        lambda path, *_: find_images(path),
    ),
}
"""Name -> format, in the order of detection."""


def layout_of(known: FolderFormat) -> str:
    """Return the name of a format."""
    return next(name for name, each in FORMATS.items() if each is known)


def serves(kinds: tuple[SampleKind, ...], kind: SampleKind) -> bool:
    """Whether a set of `kinds` can be opened as `kind`: images with classes serve as images alone, too."""
    return kind in kinds or (kind is SampleKind.IMAGE and SampleKind.CLASS in kinds)


def recognize(path: str) -> tuple[FolderFormat, SampleKind]:
    """Return the format of the data at `path`, and the first kind of its samples.

    Raises:
        DataError: The path does not exist, can't be listed, or has no known format.
    """
    known, kinds = recognize_kinds(path)
    return known, kinds[0]


def recognize_kinds(path: str) -> tuple[FolderFormat, tuple[SampleKind, ...]]:
    """Return the format of the data at `path`, and the kinds that its samples can be read as.

    Raises:
        DataError: The path does not exist, can't be listed, or has no known format.
    """
    with offering(path):
        return _recognized(path)


def _recognized(path: str) -> tuple[FolderFormat, tuple[SampleKind, ...]]:
    if os.path.exists(path):
        for known in FORMATS.values():
            if (kind := known.recognize(path)) is not None:
                return known, kind if isinstance(kind, tuple) else (kind,)
    check_folder(path)
    width = max(map(len, FORMATS)) + 2
    layouts = "\n".join(f"  {f'{name}:':{width}}{known.layout}" for name, known in FORMATS.items())
    found = contents(find_halves(path, has_subfolders).train)
    raise DataError(
        f"{clean_name(path)}: no data of a known format\n{layouts}\n  found: {found}",
        hint="Give --data a folder that has one of these layouts.",
    )
