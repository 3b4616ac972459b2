"""What a dataset may hold, and how its images are resampled."""

from enum import Enum
from typing import Literal

BUILT_IN = "shapes"
"""Name of the built-in set."""
Interpolation = Literal["bilinear", "bicubic"]
"""The filter that resamples images; both antialias."""


class SampleKind(Enum):
    """What a sample has beside its image. The values are what a person reads of such a set."""

    CLASS = "images in classes"
    """The number of its class."""
    MASK = "images with masks"
    """A mask with the class of each pixel."""
    IMAGE = "images alone"
    """Nothing: the images themselves are learnt, and batches of them come with noise."""
