"""Finds the folders of images and of their masks, for each split, in the layouts that people use.

DATA/images, DATA/masks                          and the same under DATA/train and DATA/val
DATA/images/training, DATA/annotations/training  as ADE20K
DATA/leftImg8bit/train, DATA/gtFine/train        as Cityscapes
DATA/train, DATA/trainannot                      as CamVid; DATA/train_images, DATA/train_masks
DATA/JPEGImages, DATA/SegmentationClass          as VOC, split by the lists in DATA/ImageSets/Segmentation
DATA/ID/images/ID.png, DATA/ID/masks/*.png       a folder for each image, its masks are joined
DATA/fold1/images, DATA/fold1/masks, DATA/fold2/…   parts of a set
DATA/X-Train-Input, DATA/X-Train-GroundTruth     names that differ by such words alone
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mptui.data.formats.folders.folder_walk import has_images
from mptui.data.formats.folders.split_words import (
    TEST,
    TRAIN,
    VAL,
    folder_words,
    image_and_mask_folders,
)
from mptui.data.formats.layout import subfolders
from mptui.errors import DataError, TwoReadingsError
from mptui.text import clean_name


@dataclass(frozen=True, slots=True)
class PairFolders:
    """The folders of one split.

    Attributes:
        images: Folder of the images.
        masks: Folder of their masks.
        each: For a folder for each image, or for each part of the set: pairs of the two; then `images` and
            `masks` hold them all.
    """

    images: str
    masks: str
    each: tuple[tuple[str, str], ...] = ()


def pair_folders(path: str) -> dict[str, PairFolders]:
    """Return the folders of images and masks of each split; under "" if there are no splits, or none at all.

    Raises:
        DataError: A folder can't be listed, or two folders can hold the masks.
    """
    inside = subfolders(path)
    by_content = _by_content(path, inside)
    by_split = _by_split(inside)
    halves = {split: found[""] for split, at in by_split.items() if "" in (found := pair_folders(at))}
    if (own := by_content.get("")) is not None or TRAIN in by_content:
        first = by_content[TRAIN] if own is None else own
        if TRAIN in halves and has_images(halves[TRAIN].images) and has_images(first.masks):
            raise _two_sets(path, first, halves[TRAIN])
        if own is None:
            return by_content
        if VAL in halves and TRAIN not in halves:
            return {TRAIN: own, **halves}
        return _split_inside(own) or {"": own}
    if TRAIN in halves:
        return halves
    each = _folder_an_image(path, inside)
    return {} if each is None else {"": each}


def has_pairs(path: str) -> bool:
    """Whether a folder has images and masks in folders of their own."""
    found = pair_folders(path)
    first = found.get(TRAIN) or found.get("")
    return first is not None and has_images(first.masks) and has_images(first.images)


def _by_content(path: str, inside: Mapping[str, str]) -> dict[str, PairFolders]:
    """Return the folders by the words in their names: `images` and `masks`, `train` and `trainannot`."""
    return {
        split: PairFolders(
            inside[_only(path, "images", images, inside)], inside[_only(path, "masks", masks, inside)]
        )
        for split, (images, masks) in image_and_mask_folders(inside).items()
    }


def _two_sets(path: str, first: PairFolders, second: PairFolders) -> TwoReadingsError:
    folders = [
        " and ".join(clean_name(os.path.relpath(at, path)) for at in (each.images, each.masks))
        for each in (first, second)
    ]
    return TwoReadingsError(
        f"{clean_name(path)}: two sets of images and masks can be meant",
        {"one": folders[0], "the other, with splits": folders[1]},
        hint="Move one of them out of it.",
    )


def _only(path: str, what: str, names: list[str], inside: Mapping[str, str]) -> str:
    """Return the only one of several folders that has images.

    Raises:
        DataError: Several have.
    """
    filled = [name for name in names if len(names) == 1 or has_images(inside[name])] or names[:1]
    if len(filled) > 1:
        first, second = map(clean_name, filled[:2])
        raise TwoReadingsError(
            f"{clean_name(path)}: two folders can be those of the {what}",
            {
                first: f"has the {what}, and {second} is left out",
                second: f"has them, and {first} is left out",
            },
            hint="Move one of them out of it.",
        )
    return filled[0]


def _by_split(inside: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, at in inside.items():
        words = folder_words(name)
        if words.split in (TRAIN, VAL, TEST) and words.exact and not words.content:
            found.setdefault(words.split, at)
    return found


def _split_inside(own: PairFolders) -> dict[str, PairFolders] | None:
    """Return the splits that folders of images and masks have inside, as `images/training`."""
    images, masks = _by_split(subfolders(own.images)), _by_split(subfolders(own.masks))
    if TRAIN not in images or TRAIN not in masks:
        return None
    return {
        split: PairFolders(images[split], masks[split])
        for split in (TRAIN, VAL, TEST)
        if split in images and split in masks
    }


def _folder_an_image(path: str, inside: Mapping[str, str]) -> PairFolders | None:
    """Return the folders of a set with a folder for each image, or each part: its images, and its masks."""
    each = []
    for at in inside.values():
        own = _by_content(at, subfolders(at)).get("")
        if own is None:
            return None
        each.append((own.images, own.masks))
    return PairFolders(path, path, tuple(each)) if each else None


def listed_splits(path: str) -> dict[str, frozenset[str]]:
    """Return the names of each split in VOC's lists (`ImageSets/Segmentation/train.txt`); empty without them.

    Raises:
        DataError: A list can't be read.
    """
    folder = os.path.join(path, "ImageSets", "Segmentation")
    found = {split: _names(os.path.join(folder, f"{split}.txt")) for split in (TRAIN, VAL, TEST)}
    return {split: frozenset(names) for split, names in found.items() if names} if found[TRAIN] else {}


def _names(file: str) -> Iterable[str]:
    if not os.path.isfile(file):
        return ()
    try:
        with open(file, encoding="utf-8-sig") as lines:
            return [line.split()[0] for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{clean_name(file)}: {clean_name(str(error))}", hint="Write the name of an image a line."
        ) from error
