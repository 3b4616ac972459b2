"""Pictures of a validation, made up."""

from dataclasses import replace

import numpy as np

from mptui.data.pictures import PicturedSample, ValidationPictures

RED, BLUE = (250, 0, 0), (0, 0, 250)


def sample(index, colour, size=(32, 32), **changes):
    pixels = np.full((*size, 3), colour, np.uint8)
    made = PicturedSample(index, f"data/{index}.png", 2.5, 0, 1, 0.75, pixels)
    return replace(made, **changes)


def pictures(epoch=1, step=10, *, best_epoch=0, keep=5, classes=("cat", "dog"), groups=None, confusion=None):
    groups = groups or {"worst": [sample(7, RED), sample(3, BLUE)], "random": [sample(1, BLUE)]}
    confusion = np.array([[5, 2], [0, 9]]) if confusion is None else confusion
    return ValidationPictures(step, epoch, best_epoch, tuple(classes), groups, confusion, keep)
