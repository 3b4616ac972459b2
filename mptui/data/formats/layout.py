"""Finds the training, validation, class, image and mask folders in a folder, and the images in them."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from mptui.data.core.types import BadSampleError
from mptui.data.decode.image import EXTENSIONS, opened
from mptui.errors import DataError
from mptui.text import clean_name

TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation")
TEST_NAMES = ("test", "testing")
IMAGE_NAMES = ("images", "imgs", "image", "img")
MASK_NAMES = ("masks", "mask", "labels", "label", "annotations", "annotation")

CLASS_FOLDERS = "DATA/train/cat/1.jpg and DATA/val/cat/2.jpg, or DATA/cat/1.jpg"
IMAGES_AND_MASKS = "DATA/images/1.jpg and DATA/masks/1.png, or both under DATA/train and DATA/val"
_NOT_DATA = frozenset({"__MACOSX", "@eaDir"})


@dataclass(frozen=True, slots=True)
class Halves:
    """Folder of the training half, and of the validation half if there is one."""

    train: str
    val: str | None = None


def check_folder(path: str) -> None:
    """Check that a path is a folder.

    Raises:
        DataError: The path does not exist, or is not a folder.
    """
    if not os.path.lexists(path):
        raise DataError(
            f"no such folder: {clean_name(path)}",
            hint="Check --data; relative paths start at the current folder.",
        )
    if not os.path.isdir(path):  # noqa: PTH112
        raise DataError(
            f"not a folder: {clean_name(path)}",
            hint="Unpack it if it is an archive, and give the folder to --data.",
        )


def find_halves(path: str, is_half: Callable[[str], bool]) -> Halves:
    """Find the training and validation folders; the folder itself serves for training if it has none.

    A `train` folder that `is_half` rejects is not a half, but e.g. a class of that name. A rejected `test`
    folder isn't either: e.g. the unlabelled images of a competition.

    Raises:
        DataError: The folder can't be listed.
    """
    inside = subfolders(path)
    train, val, test = (_first(inside, names) for names in (TRAIN_NAMES, VAL_NAMES, TEST_NAMES))
    if train is None or not is_half(train):
        return Halves(path)
    if val is None and test is not None and is_half(test):
        val = test
    return Halves(train, val)


def has_subfolders(path: str) -> bool:
    """Whether a folder could be half of a set of class folders."""
    return bool(subfolders(path))


def has_images_and_masks(path: str) -> bool:
    """Whether a folder could be half of a set of images and masks."""
    return image_and_mask_folders(path) is not None


def has_images(path: str) -> bool:
    """Whether there are images in a folder, at any depth."""
    return any(True for _ in walk_images(path))


def image_and_mask_folders(path: str) -> tuple[str, str] | None:
    """Return the folders of images and of masks in a folder; None unless it has both."""
    inside = subfolders(path)
    images, masks = _first(inside, IMAGE_NAMES), _first(inside, MASK_NAMES)
    return (images, masks) if images is not None and masks is not None else None


def subfolders(path: str) -> dict[str, str]:
    """Return the subfolders by name, in natural order ("2" before "10"), without hidden ones.

    Raises:
        DataError: The folder can't be listed.
    """
    names = (entry.name for entry in _entries(path) if _leads_to(entry.is_dir))
    return {name: os.path.join(path, name) for name in sorted(names, key=natural_key)}  # noqa: PTH118


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value, and differs for different names."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (
        *((0, int(p), "") if p.isascii() and p.isdecimal() else (1, 0, p.casefold()) for p in parts),
        (-1, 0, name),
    )


def walk_images(folder: str, ignored: Counter[str] | None = None) -> Iterator[str]:
    """Yield the image files in a folder and its subfolders, sorted, as paths that begin with `folder`.

    Files are recognized by their extension, in upper or lower case, and files without one by their content.
    Each real folder is visited once, also if several links lead to it.

    Args:
        folder: The root folder.
        ignored: Counts the extensions of the other files.

    Raises:
        DataError: A folder can't be listed.
    """
    return _walk(folder, set(), Counter() if ignored is None else ignored)


def _walk(folder: str, seen: set[tuple[int, int]], ignored: Counter[str]) -> Iterator[str]:
    levels = [_inside(folder, seen)]  # no recursion: folders may be a thousand deep
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
        elif _leads_to(entry.is_dir):
            levels.append(_inside(entry.path, seen))
        elif _is_sample(entry):
            yield entry.path
        else:
            ignored[os.path.splitext(entry.name)[1].lower()] += 1  # noqa: PTH122


def _inside(folder: str, seen: set[tuple[int, int]]) -> Iterator[os.DirEntry[str]]:
    """Return the entries of a folder, sorted; none if it was visited before."""
    try:
        status = os.stat(folder)  # noqa: PTH116
    except OSError as error:  # removed or made unreadable since it was listed
        raise _unreadable(folder, error) from error
    if (status.st_dev, status.st_ino) in seen:
        return iter(())
    seen.add((status.st_dev, status.st_ino))
    return iter(sorted(_entries(folder), key=lambda entry: entry.name))


def _is_sample(entry: os.DirEntry[str]) -> bool:
    extension = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122
    if extension not in EXTENSIONS and extension:
        return False
    if not _leads_to(entry.is_file):  # the scan reports a broken link; a pipe is no sample
        return entry.is_symlink() and bool(extension) and not os.path.exists(entry.path)  # noqa: PTH110
    return bool(extension) or _holds_image(entry.path)


def _leads_to(kind: Callable[[], bool]) -> bool:
    """Whether an entry or the target of its link is of this kind; False for circular links."""
    try:
        return kind()
    except OSError:
        return False


def _holds_image(path: str) -> bool:
    try:
        with opened(path):
            return True
    except BadSampleError:
        return False


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name not in _NOT_DATA]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(
        f"{clean_name(path)}: {error.strerror}", hint="Check that the folder is readable (ls -l)."
    )


def _first(folders: dict[str, str], names: tuple[str, ...]) -> str | None:
    by_name = {name.lower(): path for name, path in reversed(folders.items())}
    return next((by_name[name] for name in names if name in by_name), None)


def contents(path: str) -> str:
    """List the first entries of a folder for a message."""
    names = sorted((clean_name(e.name) + "/" * _leads_to(e.is_dir) for e in _entries(path)), key=natural_key)
    shown = ", ".join(islice(names, 8))
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "nothing"
