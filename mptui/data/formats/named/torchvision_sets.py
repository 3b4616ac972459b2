"""Named datasets of torchvision, which downloads and unpacks them; mptui reads the files.

Sets in one large array are stored as `.npy` files, which workers map into memory without torchvision. CIFAR
consists of pickles, which torchvision opens only if their md5 sums match.
"""

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mptui.data.core.types import Dataset
from mptui.data.decode.mask import MaskCoding
from mptui.data.formats.folder_format import Found
from mptui.data.formats.splits import ArraySplit, PathTable
from mptui.data.scan.process_pool import ScanCancelledError
from mptui.data.scan.scan import ShouldStop
from mptui.errors import DataError, DiskError
from mptui.io.disk_hint import disk_hint
from mptui.io.user_cache import cache_folder, load_json, save_json, write_whole
from mptui.processes.child import start
from mptui.registry.samples import SampleKind
from mptui.text import clean, clean_name

_LOOK_AROUND_S = 0.2
_TRIMAP = MaskCoding(("pet", "background", "border"), (1, 2, 3), (0, 1, 2))


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A torchvision dataset: its class, the arguments of its halves, and access to its files."""

    factory: str
    train: Mapping[str, Any]
    val: Mapping[str, Any]
    files: Callable[[Any], Sequence[tuple[Any, int]]] | None = None
    """Returns the image files with their classes; None: the set is one array."""
    masks: Callable[[Any], Sequence[Any]] | None = None
    coding: MaskCoding | None = None
    kinds: tuple[SampleKind, ...] = (SampleKind.CLASS,)


NAMED: dict[str, NamedSet] = {
    "cifar10": NamedSet("CIFAR10", {"train": True}, {"train": False}),
    "cifar100": NamedSet("CIFAR100", {"train": True}, {"train": False}),
    "mnist": NamedSet("MNIST", {"train": True}, {"train": False}),
    "fashionmnist": NamedSet("FashionMNIST", {"train": True}, {"train": False}),
    "imagenette": NamedSet(
        "Imagenette",
        {"split": "train", "size": "160px"},
        {"split": "val", "size": "160px"},
        files=lambda half: half._samples,
    ),
    "food101": NamedSet(
        "Food101",
        {"split": "train"},
        {"split": "test"},
        files=lambda half: list(zip(half._image_files, half._labels, strict=True)),
    ),
    "oxford-pets": NamedSet(
        "OxfordIIITPet",
        {"split": "trainval"},
        {"split": "test"},
        files=lambda half: list(zip(half._images, half._labels, strict=True)),
        masks=lambda half: half._segs,
        coding=_TRIMAP,
        kinds=(SampleKind.CLASS, SampleKind.MASK),
    ),
}


def fetch(name: str, root: str) -> None:
    """Download a set to `root` and unpack it, unless it is there already."""
    from torchvision import datasets

    known = NAMED[name]
    for half in (known.train, known.val):
        getattr(datasets, known.factory)(root, **half, download=True)


def main() -> None:
    """Download the set `argv[1]` to the folder `argv[2]`."""
    fetch(*sys.argv[1:])


def fetched(name: str, root: Path, should_stop: ShouldStop) -> None:
    """Run `fetch` in a separate process, as torchvision prints progress and can't be stopped otherwise.

    Raises:
        DataError: The set could not be downloaded.
        DiskError: Its folder can't be created.
        ScanCancelledError: `should_stop` returned True.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_room(root, error) from error
    with tempfile.TemporaryFile() as complaints:
        child = start(f"{__name__}:main", name, str(root), stderr=complaints)
        try:
            while child.poll() is None:
                if should_stop():
                    raise ScanCancelledError
                time.sleep(_LOOK_AROUND_S)
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            complaints.seek(0)
            last_line = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise DataError(
                f"{name} could not be downloaded: {clean(last_line)}",
                hint=f"Check the network, or copy the set to {root}.",
            )


def open_files(name: str, root: Path, kind: SampleKind) -> Found:
    """List the files of a set.

    Raises:
        DataError: The set is not in `root`, or incomplete.
    """
    known = NAMED[name]
    assert known.files is not None
    train, val = _halves(name, root)
    pairs = [*known.files(train), *known.files(val)]
    images = PathTable(str(path) for path, _ in pairs)
    train_rows = len(known.files(train))
    if kind is SampleKind.MASK:
        assert known.masks is not None
        masks = PathTable(str(path) for path in [*known.masks(train), *known.masks(val)])
        return Found(images, train_rows, masks=masks, coding=known.coding)
    labels = np.array([label for _, label in pairs], np.int64)
    return Found(images, train_rows, classes=_class_names(train), labels=labels)


def open_arrays(name: str, root: Path) -> Dataset:
    """Open a set in one array; the first time, write it to the cache folder, for mapping into memory.

    Raises:
        DataError: The set is not in `root`, or incomplete.
        DiskError: The cache folder can't be written.
    """
    key = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
    folder = cache_folder() / "arrays" / f"{name}-{key}"
    # The class names are written last: if they exist, the arrays are complete.
    arrays = (folder / f"{half}-{what}.npy" for half in ("train", "val") for what in ("images", "labels"))
    if load_json(folder / "classes.json") is None or not all(array.exists() for array in arrays):
        _write_arrays(folder, dict(zip(("train", "val"), _halves(name, root), strict=True)))
    train, val = (
        ArraySplit(str(folder / f"{half}-images.npy"), np.load(folder / f"{half}-labels.npy"))
        for half in ("train", "val")
    )
    classes = tuple(load_json(folder / "classes.json"))
    counts = np.bincount(train.labels, minlength=len(classes)).tolist()
    side = min(np.load(train.path, mmap_mode="r").shape[1:3])
    return Dataset(name, SampleKind.CLASS, classes, train, val, class_counts=counts, sides=(side, side, side))


def _halves(name: str, root: Path) -> tuple[Any, Any]:
    from torchvision import datasets

    known = NAMED[name]
    try:
        train, val = (getattr(datasets, known.factory)(root, **half) for half in (known.train, known.val))
    except (RuntimeError, OSError, ValueError, KeyError, EOFError, AssertionError) as error:
        raise DataError(
            f"{name} is not in {root}, or incomplete ({clean(str(error)) or type(error).__name__})",
            hint="Add --download to download it, or give its folder with --set data.path=FOLDER.",
        ) from error
    return train, val


def _write_arrays(folder: Path, halves: Mapping[str, Any]) -> None:
    try:
        # Each write is atomic, as another run may read or write the same files.
        for half, data in halves.items():
            images, labels = np.asarray(data.data, np.uint8), np.asarray(data.targets, np.int64)
            write_whole(folder / f"{half}-images.npy", partial(np.save, arr=images))
            write_whole(folder / f"{half}-labels.npy", partial(np.save, arr=labels))
    except OSError as error:
        raise _no_room(folder, error) from error
    save_json(folder / "classes.json", list(_class_names(halves["train"])))


def _no_room(folder: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{folder}: {error.strerror}",
        hint=disk_hint(error, folder, "set XDG_CACHE_HOME to a folder on another disk"),
    )


def _class_names(half: Any) -> tuple[str, ...]:  # noqa: ANN401 - a torchvision set of any kind
    """Return the names of the classes; if a class has several, the first."""
    return tuple(clean_name(name if isinstance(name, str) else name[0]) for name in half.classes)
