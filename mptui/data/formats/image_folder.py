"""Lists the samples of class folders, of images with masks and of images alone, without decoding them."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mptui.data.core.types import Problem
from mptui.data.formats.folder_format import Found
from mptui.data.formats.layout import (
    CLASS_FOLDERS,
    IMAGES_AND_MASKS,
    check_folder,
    find_halves,
    has_images,
    has_images_and_masks,
    has_subfolders,
    image_and_mask_folders,
    subfolders,
    walk_images,
)
from mptui.data.formats.mask_classes import CLASS_FILE
from mptui.data.formats.splits import PathTable
from mptui.errors import DataError
from mptui.text import clean_name

_MOST_NAMED = 10
_MASK_SUFFIX = re.compile(r"(?ai)[-_.](masks?|labels?|gt|seg(mentation)?|annotation)\Z")


def find_classes(path: str) -> Found:
    """List class folders, or a training and a validation folder of them.

    Raises:
        DataError: There are fewer than two classes, or validation has classes that training lacks.
    """
    check_folder(path)
    halves = find_halves(path, has_subfolders)
    ignored: Counter[str] = Counter()
    train = {name: PathTable(walk_images(at, ignored)) for name, at in subfolders(halves.train).items()}
    val = {} if halves.val is None else _class_tables(halves.val, ignored)
    classes = tuple(name for name, files in train.items() if len(files))
    _check_classes(path, classes, val)
    warnings = []
    if empty := [name for name, files in train.items() if not len(files)]:
        warnings.append(f"class folders without images, left out: {some(empty)}")
    if val and (missing := [name for name in classes if name not in val]):
        warnings.append(f"classes without validation images: {some(missing)}")
    warnings += _left_out(ignored)
    tables = [train[name] for name in classes] + [val[name] for name in classes if name in val]
    labels = [*range(len(classes)), *(i for i, name in enumerate(classes) if name in val)]
    return Found(
        images=PathTable(file for table in tables for file in table),
        train_rows=sum(len(train[name]) for name in classes),
        classes=tuple(clean_name(name) for name in classes),
        labels=np.repeat(np.array(labels, np.int64), [len(table) for table in tables]),
        warnings=tuple(warnings),
    )


def find_images(path: str) -> Found:
    """List all images in a folder, or in a training and a validation folder, as one class.

    Raises:
        DataError: There are none.
    """
    check_folder(path)
    halves = find_halves(path, has_images)
    ignored: Counter[str] = Counter()
    train = PathTable(walk_images(halves.train, ignored))
    val = PathTable(() if halves.val is None else walk_images(halves.val, ignored))
    if not len(train):
        raise DataError(
            f"{clean_name(path)}: holds no images", hint="Give --data the folder that has them, at any depth."
        )
    return Found(
        images=PathTable(file for table in (train, val) for file in table),
        train_rows=len(train),
        classes=("image",),
        labels=np.zeros(len(train) + len(val), np.int64),
        warnings=_left_out(ignored),
    )


def find_pairs(path: str) -> Found:
    """List images and masks in two sibling folders, or in those of training and validation.

    A mask has the stem of its image, optionally with a suffix such as `_mask` or `_label`.

    Raises:
        DataError: A folder is missing, an image has two masks, or no image has one.
    """
    check_folder(path)
    halves = find_halves(path, has_images_and_masks)
    train = _pairs_of(halves.train)
    val = _Pairs([], [], [], 0) if halves.val is None else _pairs_of(halves.val)
    without_image = train.masks_left + val.masks_left
    return Found(
        images=PathTable(train.images + val.images),
        masks=PathTable(train.masks + val.masks),
        train_rows=len(train.images),
        class_file=_class_file(path, halves.train),
        unpaired=tuple(Problem(file, "has no mask") for file in train.unpaired + val.unpaired),
        warnings=(f"{without_image} masks have no image",) if without_image else (),
    )


def some(names: Sequence[str]) -> str:
    """Join the first few names for a message."""
    shown = ", ".join(clean_name(name) for name in names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown}, … ({len(names)} in all)"


@dataclass(frozen=True, slots=True)
class _Pairs:
    images: list[str]
    masks: list[str]
    unpaired: list[str]
    masks_left: int


def _class_tables(path: str, ignored: Counter[str]) -> dict[str, PathTable]:
    tables = {name: PathTable(walk_images(at, ignored)) for name, at in subfolders(path).items()}
    filled = {name: table for name, table in tables.items() if len(table)}
    if not filled:
        raise DataError(
            f"{clean_name(path)}: no class folders with images",
            hint="Put the validation images there, one folder per class, or remove the folder.",
        )
    return filled


def _check_classes(path: str, classes: tuple[str, ...], val: dict[str, PathTable]) -> None:
    if len(classes) < 2:
        what = (
            f"only one class folder with images: {clean_name(classes[0])}"
            if classes
            else "no class folders with images"
        )
        raise DataError(
            f"{clean_name(path)}: {what}\n  layout: {CLASS_FOLDERS}",
            hint="Give --data the folder whose subfolders are the classes.",
        )
    unknown = [name for name in val if name not in classes]
    if unknown:
        raise DataError(
            f"{clean_name(path)}: validation has classes that training lacks: {some(unknown)}",
            hint="Give both the same class folders.",
        )


def _pairs_of(path: str) -> _Pairs:
    folders = image_and_mask_folders(path)
    if folders is None:
        raise DataError(
            f"{clean_name(path)}: needs a folder of images and one of masks\n  layout: {IMAGES_AND_MASKS}",
            hint="Give it both, side by side.",
        )
    image_folder, mask_folder = folders
    ignored: Counter[str] = Counter()
    images, masks = _by_stem(image_folder, ignored), _by_stem(mask_folder, ignored)
    if not images or not masks:
        empty = mask_folder if images else image_folder
        others = f" (but {ignored.total()} other files: {_kinds(ignored)})" if ignored else ""
        raise DataError(
            f"{clean_name(empty)}: holds no images{others}",
            hint="A mask is an image file whose pixels are the classes; polygons and boxes are not read.",
        )
    pairs, left = _matched(images, masks)
    if not pairs:
        raise DataError(
            f"{clean_name(mask_folder)}: no mask has the name of an image in {clean_name(image_folder)}",
            hint="Use the same names: 1.jpg and 1.png, or 1_mask.png.",
        )
    unpaired = [files[0] for stem, files in images.items() if stem not in pairs]
    kept = [stem for stem in images if stem in pairs]
    return _Pairs([images[stem][0] for stem in kept], [pairs[stem] for stem in kept], unpaired, left)


def _matched(images: dict[str, list[str]], masks: dict[str, list[str]]) -> tuple[dict[str, str], int]:
    """Match images and masks by stem; return the mask of each image and the number of unmatched masks."""
    claims: dict[str, list[str]] = defaultdict(list)
    left = 0
    for stem, files in masks.items():
        owner = stem if stem in images else _without_suffix(stem)
        if owner in images:
            claims[owner] += files
        else:
            left += len(files)
    for stem, files in claims.items():
        _refuse_two("images have one name", images[stem])
        _refuse_two("masks fit one image", files)
    return {stem: files[0] for stem, files in claims.items()}, left


def _refuse_two(what: str, files: list[str]) -> None:
    if len(files) > 1:
        raise DataError(
            f"two {what}: {clean_name(files[0])} and {clean_name(files[1])}", hint="Remove one of them."
        )


def _by_stem(folder: str, ignored: Counter[str]) -> dict[str, list[str]]:
    """Return the image files in a folder by their relative path without extension."""
    files: dict[str, list[str]] = defaultdict(list)
    for file in walk_images(folder, ignored):
        files[os.path.splitext(os.path.relpath(file, folder))[0]].append(file)  # noqa: PTH122
    return dict(files)


def _without_suffix(stem: str) -> str:
    return _MASK_SUFFIX.sub("", stem)


def _class_file(*folders: str) -> Path | None:
    candidates: Iterator[Path] = (Path(folder) / CLASS_FILE for folder in folders)
    return next((file for file in candidates if file.is_file()), None)


def _left_out(ignored: Counter[str]) -> tuple[str, ...]:
    if not ignored:
        return ()
    return (f"left out {ignored.total()} files that aren't images by their names: {_kinds(ignored)}",)


def _kinds(ignored: Counter[str]) -> str:
    return ", ".join(clean_name(extension) or "no extension" for extension, _ in ignored.most_common(5))
