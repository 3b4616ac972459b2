"""Samples of a validation as small pictures, and what the network predicted of them. Imports no torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WORST, RANDOM, BY_CLASS = "worst", "random", "by class"
"""Groups of samples: those of the highest error; the same ones at each validation; the same ones by class."""


CAPTION = 28
"""Height in pixels of the words below a sample in a picture: two lines."""


@dataclass(frozen=True, slots=True)
class SamplePrediction:
    """A sample of a validation, and what is predicted of it.

    Attributes:
        index: Its index in the validation set.
        file: Its file, or its name in the set.
        error: The cross-entropy of its class; with masks, the share of valid pixels of a wrong class.
        truth: Its class; None with masks.
        predicted: The most probable class; None with masks.
        probability: That of the predicted class; None with masks.
    """

    index: int
    file: str
    error: float
    truth: int | None
    predicted: int | None
    probability: float | None


@dataclass(frozen=True, slots=True)
class PicturedSample(SamplePrediction):
    """A sample with its picture, RGB; with masks the image, the mask and the prediction side by side."""

    pixels_HWC: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ValidationPictures:
    """Pictures of a validation.

    Attributes:
        step: Optimizer step.
        epoch: Epoch, from 1.
        best_epoch: That of the best validation so far; 0: none.
        classes: The names of the K classes.
        groups: Group -> its samples.
        confusion: The confusion matrix of all samples, or pixels, [K, K]: rows are true classes. None: not
            kept.
        keep: Number of newest validations whose pictures are kept on disk, besides the best.
    """

    step: int
    epoch: int
    best_epoch: int
    classes: tuple[str, ...]
    groups: dict[str, list[PicturedSample]]
    confusion: npt.NDArray[np.int64] | None
    keep: int

    @property
    def images(self) -> int:
        """Number of pictures."""
        return sum(map(len, self.groups.values()))
