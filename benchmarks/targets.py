"""What the benchmarks are to show, at least or at most: what `docs/speed.md` holds their figures against."""

from collections.abc import Mapping
from dataclasses import dataclass

LOOP = 0.99
"""Of a bare loop's images a second."""
LOOP_TINY_US = 40
"""More than a bare loop takes for a step of the tiny network, at most."""

PEERS: Mapping[str, Mapping[str, float]] = {
    "cpu": {"bare": LOOP, "lightning": 1.0, "lightning-logging": 1.0, "accelerate": 1.0, "timm": 1.0},
    "cuda": {"lightning": 1.15, "lightning-logging": 1.15, "accelerate": 1.15, "timm": 1.15, "recipe": 1.15},
    "tiny": {"accelerate": 1.25, "lightning-logging": 2.5},
}
"""As a multiple of a side's images a second, by device and for the tiny network."""

GUARDS = 0.01
"""Of a step's time, at most."""
UI = {"resnet18": 0.97, "python": 0.90}
"""Of the samples a second without a screen."""

INPUT = 1.5
"""Times as little processor time an image as ImageFolder at its best."""
WAIT = 0.02
"""Of a run's time that it waits for its data, at most."""
CACHED = 4.0
"""Times as fast an epoch from memory as the first."""

CHANNELS_LAST = {"resnet50": 1.10}
"""Times as fast a step of FP32 in channels last as without, at 224 px."""
SECOND_START = 0.15
"""Of the first start's time with compiled code kept, at most."""

GROWN_MIB = 5.0
"""More memory after ten million steps than after a hundred thousand, at most."""
LONG = 1.2
"""Of what a run of a hundred thousand steps takes to attach to or to resume, at most."""


@dataclass(frozen=True)
class OnGpu:
    """What is to be reached on one network."""

    floor_share: float
    over_tf32: float
    over_fp32: float
    over_peer: float | None = None


GPU = {
    "resnet50": OnGpu(floor_share=0.37, over_tf32=1.6, over_fp32=3.5, over_peer=1.15),
    "unet": OnGpu(floor_share=0.55, over_tf32=1.7, over_fp32=5.0),
}
GPU_MEMORY = {"amp": 0.55, "amp compiled": 0.50, "memory-limited": 0.30}
"""Of FP32's peak, at most."""
GPU_PHOTOS = 3.5
"""Times as fast as a plain script, from JPEG to weights."""
