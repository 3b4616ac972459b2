"""Recognizes sets of tar shards and of Parquet files, and lists their samples."""

import os
from collections.abc import Callable
from dataclasses import replace

from mptui.data.formats.folder_format import Found
from mptui.data.formats.folders.folder_walk import FolderWalk
from mptui.data.formats.packed.listing import Listing
from mptui.data.formats.packed.packed_files import PackedFiles, find_packed
from mptui.data.formats.packed.packed_samples import class_file, declared_classes, join
from mptui.data.formats.packed.parquet import columns_of, rows_of, unpack
from mptui.data.formats.packed.tar import kind_of_shard, list_shard
from mptui.data.scan.scan import OnProgress, ShouldStop
from mptui.errors import TwoReadingsError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name, some

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

    return _told(path, files, join(path, *_each(splits, listed), kind, declared_classes(path)))


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
    found = join(path, *_each(splits, listed), kind, None)
    return _told(path, files, replace(found, warnings=(*found.warnings, *said)))


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
            hint="Rename the one that is meant to label: dataset.rename_column(NAME, 'label').",
        )
    return (f"the labels are those of the column {label}; {others} has classes, too, and is not read",)


def _told(path: str, files: PackedFiles, found: Found) -> Found:
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
) -> tuple[list[Listing], list[Listing], list[Listing]]:
    """List the files of the splits; `listed` is called with a file and with what was done before it."""
    done, found = 0, []
    for split in splits:
        found.append(list[Listing]())
        for file in split:
            listing, done = listed(file, done)
            found[-1].append(listing)
    train, val, test = found
    return train, val, test
