"""Goals of the benchmarks, lower or upper bounds, as shown in `docs/speed.md`."""

from collections.abc import Mapping
from dataclasses import dataclass

LOOP = 0.99
"""Minimum throughput, as a fraction of a bare loop's."""
LOOP_TINY_US = 40
"""Maximum overhead per step of the tiny network over a bare loop, in µs."""
RANKS = 0.98
"""Minimum throughput of two processes, as a fraction of a bare DistributedDataParallel loop's."""

PEERS: Mapping[str, Mapping[str, float]] = {
    "cpu": {"bare": LOOP, "lightning": 1.0, "lightning-logging": 1.0, "accelerate": 1.0, "timm": 1.0},
    "cuda": {"lightning": 1.15, "lightning-logging": 1.15, "accelerate": 1.15, "timm": 1.15, "recipe": 1.15},
    "tiny": {"accelerate": 1.25, "lightning-logging": 2.5},
}
"""Minimum throughput as a multiple of each peer's, by device and for the tiny network."""

GUARDS = 0.01
"""Maximum overhead, as a fraction of step time."""
UI = {"resnet18": 0.97, "python": 0.90}
"""Minimum throughput, as a fraction of that without a screen."""
DRAWING = 0.02
"""Maximum processor time of the live screen in a process of its own, as a fraction of a core."""
KEY_MS = 100
"""Maximum time from a key to the answer on the screen, in ms."""
PREDICT = 0.97
"""Minimum throughput of predictions on images in memory, as a fraction of a bare inference loop's."""

INPUT = 1.5
"""Minimum ratio of CPU time per image, ImageFolder at its best over mptui."""
WAIT = 0.02
"""Maximum data wait, as a fraction of run time."""
CACHED = 4.0
"""Minimum speedup of a cached epoch over the first."""

CHANNELS_LAST = {"resnet50": 1.10}
"""Minimum speedup of an FP32 step by channels last, at 224 px."""
SECOND_START = 0.15
"""Maximum start time with a warm compile cache, as a fraction of that with an empty one."""

DIFFUSERS = 1.0
"""Minimum throughput of sampling, as a multiple of diffusers'."""
DIFFUSERS_LOSS = 1.0
"""Maximum loss, as a multiple of that of diffusers' network after as many steps."""

GROWN_MIB = 5.0
"""Maximum memory growth from a hundred thousand to ten million steps, in MiB."""
LONG = 1.2
"""Maximum time to attach or resume, as a multiple of that of a run of a hundred thousand steps."""
TIME_TRAVEL = 0.1
"""Maximum time from a key to the frame of an earlier moment, in seconds."""


@dataclass(frozen=True)
class OnGpu:
    """Goals for one network on a GPU."""

    floor_share: float
    over_tf32: float
    over_fp32: float
    over_peer: float | None = None


GPU = {
    "resnet50": OnGpu(floor_share=0.37, over_tf32=1.6, over_fp32=3.5, over_peer=1.15),
    "unet": OnGpu(floor_share=0.55, over_tf32=1.7, over_fp32=5.0),
}
GPU_MEMORY = {"amp": 0.55, "amp compiled": 0.50, "memory-limited": 0.30}
"""Maximum peak memory, as a fraction of FP32's."""
GPU_PHOTOS = 3.5
"""Minimum speedup over a plain script, from JPEG to weights."""
