"""Published weights of a network: their file, and the images that they were trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from mptui.models.hub import HubFile
from mptui.registry.samples import Interpolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """Published weights.

    Attributes:
        name: Their name, e.g. `resnet50 IMAGENET1K_V2`.
        file: Their file.
        mean: Mean of each channel of their images, of pixels in 0..1.
        std: Standard deviation of each channel.
        side: Height and width of these in pixels; None: of no importance.
        interpolation: How they were resampled.
        crop_pct: Fraction of the shorter side in the centre crop that they are validated with.
        read: Called with the path of the file and the side of the images of a run; returns the weights by the
            names of the network.
        part: Name of the module of the network that they are for; "": of all of it.
    """

    name: str
    file: HubFile
    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int | None
    interpolation: Interpolation
    crop_pct: float
    read: Callable[[Path, int], Mapping[str, torch.Tensor]]
    part: str = ""
