"""Recognizes sets of tar shards, and lists their samples."""

from collections.abc import Callable

from mptui.data.formats.folder_format import Found
from mptui.data.formats.packed.files import PackedFiles, find_packed
from mptui.data.formats.packed.listing import Listing
from mptui.data.formats.packed.samples import declared_classes, join
from mptui.data.formats.packed.tar import kind_of_shard, list_shard
from mptui.data.scan.scan import OnProgress, ShouldStop
from mptui.registry.samples import SampleKind

TAR = ".tar"
TAR_SHARDS = "DATA/train-0000.tar and DATA/val-0000.tar, of members 1.jpg and 1.cls, 1.json or 1.mask.png"
_CLASS_FILES = ("classes.txt", "classnames.txt")


def has_shards(path: str) -> SampleKind | None:
    """Return the kind of the samples of tar shards; None if the path has none."""
    files = find_packed(path, TAR)
    return None if files is None or not files.train else kind_of_shard(files.train[0])


def find_in_shards(path: str, kind: SampleKind, on_progress: OnProgress, should_stop: ShouldStop) -> Found:
    """List the samples of tar shards.

    Raises:
        DataError: A shard is damaged, or there are no usable samples.
        ScanCancelledError: `should_stop` returned True.
    """
    files = find_packed(path, TAR)
    assert files is not None
    lists = _lists(files, lambda file, _: list_shard(file, should_stop), on_progress)
    return join(path, *lists, kind, declared_classes(path, _CLASS_FILES))


def _lists(
    files: PackedFiles, listed: Callable[[str, int], Listing], on_progress: OnProgress
) -> tuple[list[Listing], list[Listing], list[Listing]]:
    """List the files of the splits that are used."""
    splits = [files.train, files.val, [] if files.val else files.test]
    total, done = sum(map(len, splits)), 0
    lists: list[list[Listing]] = []
    for split in splits:
        lists.append([])
        for file in split:
            lists[-1].append(listed(file, done))
            done += 1
            on_progress(done, total)
    return lists[0], lists[1], lists[2]
