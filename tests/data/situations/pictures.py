"""Pictures whose right mask can be read from them: class c is grey of 20 + 40 c, what is ignored is white."""

from pathlib import Path

import numpy as np
from PIL import Image

from mptui.data.types import IGNORE
from tests.data.images import save_oriented

HEIGHT, WIDTH = 40, 48
WHITE = 255


def classes_of(seed, count=2, *, ring=False):
    """Return classes [H, W]: a disc of each class but 0, from a corner on; `ring`: ignored pixels around."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    classes_HW = np.zeros((HEIGHT, WIDTH), np.int64)
    for number in range(1, count):
        centre = 9 + seed % 3 + 12 * ((number - 1) % 2), 10 + seed % 4 + 12 * ((number - 1) // 2)
        distance = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2
        if ring:
            classes_HW[distance < 49] = IGNORE
        classes_HW[distance < 30] = number
    return classes_HW


def photo_of(classes_HW):
    """Return the picture of some classes."""
    grey_HW = np.where(classes_HW == IGNORE, WHITE, 20 + 40 * classes_HW).astype(np.uint8)
    return Image.fromarray(np.stack([grey_HW] * 3, axis=-1))


def right_mask(image_HWC):
    """Return the mask that a picture of classes has."""
    grey_HW = image_HWC[..., 0].astype(np.int64)
    return np.where(grey_HW > 240, IGNORE, np.rint((grey_HW - 20) / 40).astype(np.int64))


def mask_of(classes_HW, values):
    """Return the mask of some classes with the value of each; `values[-1]` is that of ignored pixels."""
    table = np.array([values.get(number, 0) for number in [*range(16), IGNORE]], np.uint8)
    return Image.fromarray(table[classes_HW])


def put(path, picture, **settings):
    """Save a picture, with its folders."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **settings)


def pairs(root, images, masks, count=5, values=None, classes=2, ring=False, first=0, **settings):
    """Save pictures and masks; `{}` in the names is their number."""
    values = {0: 0, 1: 255} if values is None else values
    for number in range(first, first + count):
        classes_HW = classes_of(number, classes, ring=ring)
        put(root / images.format(number), photo_of(classes_HW))
        put(root / masks.format(number), mask_of(classes_HW, values), **settings)


def turned_pairs(root, orientations, *, upright, square=False):
    """Save photographs stored turned, with masks drawn over them as shown or as stored."""
    for number, orientation in enumerate(orientations):
        classes_HW = classes_of(number)[: HEIGHT if square else None, : HEIGHT if square else None]
        (root / "images").mkdir(exist_ok=True, parents=True)
        save_oriented(root / "images" / f"{number}.jpg", orientation, photo_of(classes_HW))
        mask = mask_of(classes_HW, {0: 0, 1: 255})
        if not upright:
            scratch = root / "scratch.png"
            save_oriented(scratch, orientation, mask)
            with Image.open(scratch) as stored:
                mask = Image.fromarray(np.asarray(stored))
            scratch.unlink()
        put(root / "masks" / f"{number}.png", mask)


def photos(root, folders):
    """Save small photographs: the number of them for each folder, separated by blanks: `cat:3 dog:2`."""
    for entry in folders.split():
        folder, _, count = entry.rpartition(":")
        for number in range(int(count)):
            rng = np.random.default_rng([number, *folder.encode()])
            put(root / folder / f"{number}.png", Image.fromarray(rng.integers(0, 255, (8, 9, 3), np.uint8)))
