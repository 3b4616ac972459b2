"""Mean and standard deviation of an image's channels. Imports no torch, as the plan imports this."""

from dataclasses import dataclass

from mptui.registry.samples import SampleKind


@dataclass(frozen=True, slots=True)
class Normalization:
    """What is subtracted from each channel, and what divides it.

    Values of uint8 are in 0..1, all others as they are stored.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Normalises pixels to -1..1."""


def default_normalization(kind: SampleKind) -> Normalization:
    """Return the normalisation where nothing else is known: of ImageNet; of images alone to -1..1."""
    return HALF if kind is SampleKind.IMAGE else IMAGENET
