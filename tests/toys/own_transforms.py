"""A module with transforms of a person's own, and its name."""

from itertools import count
from pathlib import Path

from mptui.registry import own_code

_NUMBERS = count()
_CODE = '''
import random

import numpy as np
import torch
from torchvision.transforms import v2

affine = v2.Compose([v2.RandomAffine(30, translate=(0.2, 0.2)), v2.RandomHorizontalFlip()])
small = v2.Resize(8)
normalized = v2.Normalize([0.5] * 3, [0.5] * 3)


def moved(image, mask=None):
    """Moves image and mask alike, and lights one band of the image, by numbers of all three generators."""
    by = random.randrange(8), int(np.random.randint(8))
    image = image.roll(by, dims=(-2, -1))
    image[0] //= int(torch.randint(1, 4, ()))
    return image if mask is None else (image, mask.roll(by, dims=(-2, -1)))


class Inverted:
    def __call__(self, image, mask=None):
        return 255 - image if mask is None else (255 - image, mask)


def scaled(image, mask=None):
    return image / 255 if mask is None else (image / 255, mask)


def broken(image, mask=None):
    return {}["image"]  # the mistake


def numbered(image, mask):
    return image, mask + 1


def alone(image, mask=None):
    return image


size = 3
'''


def own_transforms(folder: Path) -> str:
    """Write the module into a folder, from which code is imported now; return its name."""
    name = f"own_transforms_{next(_NUMBERS)}"
    (folder / f"{name}.py").write_text(_CODE)
    own_code.allow(str(folder))
    return name
