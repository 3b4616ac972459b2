"""Recognizes masks by names: beside their images, as `1.png` and `1_mask.png`, or in a folder of masks."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from mptui.data.formats.folders.folder_walk import walk_images
from mptui.data.formats.folders.split_words import image_and_mask_folders, same_text

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
    if folders := _mask_folders(root, dict.fromkeys(map(os.path.dirname, paths))):
        found |= {path: IN_FOLDER for path in paths if os.path.dirname(path) in folders}
    return found


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


def _mask_folders(root: str, folders: Iterable[str]) -> set[str]:
    """Return the folders that lie in one of masks, or are one, where another beside it has images."""
    above = {folder: [*_down_to(root, folder)] for folder in folders}
    inside: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for places in above.values():
        for place in places:
            parent, name = os.path.split(place)
            inside[parent][name] = None
    of_masks = {
        os.path.join(parent, mask)
        for parent, names in inside.items()
        for _, masks in image_and_mask_folders(names).values()
        for mask in masks
    }
    return {folder for folder, places in above.items() if not of_masks.isdisjoint(places)}


def _down_to(root: str, folder: str) -> Iterable[str]:
    """Yield a folder and those above it, below `root`."""
    while len(folder) > len(root):
        yield folder
        folder = os.path.dirname(folder)
