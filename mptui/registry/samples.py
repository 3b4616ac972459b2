"""What a dataset may hold."""

from enum import Enum


class SampleKind(Enum):
    """What a sample has beside its image. The values are what a person reads of such a set."""

    CLASS = "images in classes"
    """The number of its class."""
    MASK = "images with masks"
    """A mask with the class of each pixel."""
    IMAGE = "images alone"
    """Nothing: the images themselves are learnt, and batches of them come with noise."""
