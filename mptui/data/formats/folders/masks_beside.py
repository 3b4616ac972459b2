"""Recognizes masks by names: beside their images, as `1.png` and `1_mask.png`, or in a folder of masks."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from mptui.data.formats.folders.folder_walk import walk_images
from mptui.data.formats.folders.split_words import folder_words, image_and_mask_folders, same_text

BESIDE = "is a mask by its name, beside its image"
IN_FOLDER = "lies in a folder of masks, beside one of images"
MASK_WORDS = (b"mask", b"label", b"annot", b"gt", b"ground", b"seg", b"trimap")
"""What the path of a mask holds that a name tells; in lower case."""

_LOOKED_AT = 4096
_MASK = re.compile(r"(?ai)[-_. ](?:masks?|segmentation|annotation|groundtruth|gt)(?P<number>[-_]?[0-9]+)?\Z")


def has_masks_beside(path: str) -> bool:
    """Whether images in a folder have masks beside them, by the first images of it."""
    return bool(masks_beside(islice(walk_images(path), _LOOKED_AT)))


def masks_by_name(root: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the reason by which each of some images is a mask, of those that are.

    Args:
        root: Folder in which all images are; names above it and its own say nothing.
        paths: The images.
    """
    found = {mask: BESIDE for masks in masks_beside(paths).values() for mask in masks}
    if folders := _pair_folders(root, paths)[1]:
        found |= {path: IN_FOLDER for path in paths if os.path.dirname(path) in folders}
    return found


def without_pairs(root: str, paths: Sequence[str]) -> list[str]:
    """Return the images that are no masks by their names, and in no folder of images beside one of masks."""
    masks, folders = masks_by_name(root, paths), _pair_folders(root, paths)[0]
    return [path for path in paths if path not in masks and os.path.dirname(path) not in folders]


def masks_beside(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the masks of each image that has some in its own folder, by the path of the image."""
    stems: dict[str, str] = {}
    named: list[tuple[str, str]] = []
    for path in paths:
        stem = os.path.splitext(path)[0]
        if (found := _MASK.search(stem)) is not None:
            named.append((same_text(stem[: found.start()]), path))
        stems[same_text(stem)] = path
    found_masks: dict[str, list[str]] = {}
    for owner, mask in named:
        if (image := stems.get(owner)) is not None:
            found_masks.setdefault(image, []).append(mask)
    return found_masks


def _pair_folders(root: str, paths: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the folders of images beside one of masks, and those of masks, with the folders in them."""
    above = {folder: [*_down_to(root, folder)] for folder in dict.fromkeys(map(os.path.dirname, paths))}
    inside: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for places in above.values():
        for place in places:
            parent, name = os.path.split(place)
            inside[parent][name] = None
    images, masks, halves = set[str](), set[str](), set[str]()
    for parent, names in inside.items():
        for image_names, mask_names in image_and_mask_folders(names).values():
            masks.update(os.path.join(parent, name) for name in mask_names)
            for name in image_names:
                (images if folder_words(name).content else halves).add(os.path.join(parent, name))
    return (
        {folder for folder, at in above.items() if folder in halves or not images.isdisjoint(at)},
        {folder for folder, at in above.items() if not masks.isdisjoint(at)},
    )


def _down_to(root: str, folder: str) -> Iterable[str]:
    """Yield a folder and those above it, below `root`."""
    while len(folder) > len(root):
        yield folder
        folder = os.path.dirname(folder)
