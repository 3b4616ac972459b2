"""The known layouts of data on disk, and the recognition of a path's layout."""

import os
from collections.abc import Callable
from dataclasses import replace

from mptui.config.schema import DataConfig
from mptui.data.folder_format import FolderFormat, Found
from mptui.data.layouts.class_folders import class_splits, find_classes, find_images, names_are_classes
from mptui.data.layouts.image_list import find_in_list, offering, recognize_list
from mptui.data.layouts.packed import Listing, PackedFiles, class_file, declared_classes, find_packed, join
from mptui.data.layouts.pairs import find_masks_beside, find_pairs, has_masks_beside, has_pairs
from mptui.data.layouts.parquet import columns_of, rows_of, unpack
from mptui.data.layouts.table import LAYOUT as LISTS
from mptui.data.layouts.tar import kind_of_shard, list_shard
from mptui.data.layouts.walk import (
    CLASS_FOLDERS,
    IMAGES_AND_MASKS,
    FolderWalk,
    check_folder,
    contents,
    find_splits,
    has_images,
    has_subfolders,
)
from mptui.data.prepared import LAYOUT, kind_of_prepared, open_prepared
from mptui.data.scan import OnProgress, ShouldStop
from mptui.errors import DataError, TwoReadingsError
from mptui.registry.names import SampleKind
from mptui.text import clean_name, some

# Recognizes sets of tar shards and of Parquet files, and lists their samples
# ---------------------------------------------------------------------------

TAR_SHARDS = "DATA/train-0000.tar and DATA/val-0000.tar, of members 1.jpg and 1.cls, 1.json or 1.mask.png"
PARQUET_FILES = "DATA/train-0000.parquet and DATA/validation-0000.parquet, of columns image and label or mask"

_NO_SPLIT = "has no split in its name, as others have"
_OUTSIDE = "lies beside the packed files"
TAR, PARQUET = ".tar", ".parquet"


def has_shards(path: str) -> SampleKind | None:
    """Return the kind of the samples of tar shards; None if the path has none."""
    files = find_packed(path, TAR)
    return None if files is None or not files.train else kind_of_shard(files.train[0])


def has_parquet(path: str) -> SampleKind | None:
    """Return the kind of the samples of Parquet files; None if the path has none with images."""
    files = find_packed(path, PARQUET)
    if files is None or not files.train:
        return None
    columns = columns_of(files.train[0])
    return None if columns is None else columns.kind


def find_in_shards(
    path: str, kind: SampleKind, on_progress: OnProgress, should_stop: ShouldStop, *_: object
) -> Found:
    """List the samples of tar shards.

    Raises:
        DataError: A shard is damaged, or there are no usable samples.
        ScanCancelledError: `should_stop` returned True.
    """
    files = find_packed(path, TAR) or PackedFiles([], [], [])
    splits = _splits(files)
    total = sum(map(len, splits))

    def listed(file: str, done: int) -> tuple[Listing, int]:
        listing = list_shard(file, should_stop)
        on_progress(done + 1, total)
        return listing, done + 1

    return _with_origin(path, files, join(path, _each(splits, listed), kind, declared_classes(path)))


def find_in_parquet(
    path: str, kind: SampleKind, on_progress: OnProgress, should_stop: ShouldStop, *_: object
) -> Found:
    """List the samples of Parquet files, after their images were copied to the cache.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: A file is damaged, there are no usable samples, or labels may be in several columns.
        DiskError: The cache has no room for the images.
        ScanCancelledError: `should_stop` returned True.
    """
    files = find_packed(path, PARQUET) or PackedFiles([], [], [])
    splits = _splits(files)
    total = sum(rows_of(file) for split in splits for file in split)

    def listed(file: str, done: int) -> tuple[Listing, int]:
        listing = unpack(file, lambda rows: on_progress(done + rows, total), should_stop)
        done += len(listing.places) + len(listing.problems)
        on_progress(done, total)
        return listing, done

    said = _labels_said(files.train[0]) if kind is SampleKind.CLASS and files.train else ()
    found = join(path, _each(splits, listed), kind, None)
    return _with_origin(path, files, replace(found, warnings=(*found.warnings, *said)))


def _labels_said(file: str) -> tuple[str, ...]:
    """Return which column of several with classes has the labels.

    Raises:
        DataError: None of them has a usual name.
    """
    columns = columns_of(file)
    if columns is None or not columns.other_labels:
        return ()
    others = some(columns.other_labels)
    label = clean_name(str(columns.label))
    if not columns.is_usual:
        raise TwoReadingsError(
            f"{clean_name(file)}: the labels may be in {label} or in {others}",
            {clean_name(str(name)): "a column of classes" for name in (columns.label, *columns.other_labels)},
            hint="rename the one that is meant to label: dataset.rename_column(NAME, 'label')",
        )
    return (f"the labels are those of the column {label}; {others} has classes, too, and is not read",)


def _with_origin(path: str, files: PackedFiles, found: Found) -> Found:
    """Return the list of a set with where its split comes from, and what was left out of it."""
    has_val = found.train_rows < len(found.images)
    test = files.test if files.val or not has_val else []
    walk = FolderWalk(path)
    if files.others:
        walk.left[_NO_SPLIT] += files.others
    if os.path.isdir(path):
        named = str(class_file(path))
        walk.leave_rest(_OUTSIDE, used={*files.train, *files.val, *files.test, *files.others, named})
    val = files.val or files.test
    split = f"names of the files, as {clean_name(os.path.basename(val[0]))}" if has_val and val else ""
    return replace(
        found,
        split=split,
        test=test,
        left_out=walk.left_out(),
        warnings=(*found.warnings, *walk.warnings()),
    )


def _splits(files: PackedFiles) -> tuple[list[str], list[str], list[str]]:
    """Return the files for training, for validation and, if there are none, those of the test."""
    return files.train, files.val, [] if files.val else files.test


def _each(
    splits: tuple[list[str], ...], listed: Callable[[str, int], tuple[Listing, int]]
) -> list[list[Listing]]:
    """List the files of the splits; `listed` is called with a file and with what was done before it."""
    done, found = 0, list[list[Listing]]()
    for split in splits:
        found.append([])
        for file in split:
            listing, done = listed(file, done)
            found[-1].append(listing)
    return found


# The known data formats on disk, and the detection of a path's format
# --------------------------------------------------------------------


def _has_pairs(path: str) -> SampleKind | None:
    return SampleKind.MASK if has_pairs(path) else None


def _has_classes(path: str) -> SampleKind | None:
    return SampleKind.CLASS if names_are_classes(class_splits(path).train) else None


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
    LAYOUT: FolderFormat(
        "DATA/prepared.json beside tar shards, as mptui prepare writes it",
        kind_of_prepared,
        lambda path, *_: open_prepared(path),
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
    found = contents(find_splits(path, has_subfolders).train)
    raise DataError(
        f"{clean_name(path)}: no data of a known format\n{layouts}\n  found: {found}",
        hint="give --data a folder that has one of these layouts",
    )
