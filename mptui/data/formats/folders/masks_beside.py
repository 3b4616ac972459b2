"""Recognizes masks that lie in one folder with their images, as `1.png` and `1_mask.png`."""

import os
import re
from collections.abc import Iterable
from itertools import islice

from mptui.data.formats.folders.folder_walk import walk_images
from mptui.data.formats.folders.split_words import same_text

BESIDE = "is a mask by its name, beside its image"
MASK_WORDS = (b"mask", b"segmentation", b"annotation", b"groundtruth", b"gt")
"""What a name holds that may be a mask's; in lower case."""

_LOOKED_AT = 4096
_MASK = re.compile(r"(?ai)[-_. ](?:masks?|segmentation|annotation|groundtruth|gt)(?P<number>[-_]?[0-9]+)?\Z")


def has_masks_beside(path: str) -> bool:
    """Whether images in a folder have masks beside them, by the first images of one."""
    first: list[str] = []
    for image in islice(walk_images(path), _LOOKED_AT):
        if first and os.path.dirname(image) != os.path.dirname(first[0]):
            break
        first.append(image)
    return bool(masks_beside(first))


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
