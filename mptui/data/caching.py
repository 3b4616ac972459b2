"""Whether the decoded set is kept, and where: on the device, in the host's memory, or not at all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mptui.data.geometry import Geometry
from mptui.data.resident import cache_fits
from mptui.data.stored import stored_bytes
from mptui.data.types import Dataset, Sides
from mptui.hardware.host import host_memory

CacheMode = Literal["off", "ram", "device"]

_SHARE = 0.5
"""Of the free memory, what a cache may take that `auto` has chosen."""
_SHARE_ASKED = 0.8
_LEFT_FREE = 0.08
"""Of all memory, what is left free in any case."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where decoded samples are kept, and why."""

    mode: CacheMode
    reason: str
    enough: bool = True
    """False: memory was asked for that is not there, so only a part of the samples will be kept."""


def choose_cache(
    asked: str, dataset: Dataset, *, side: int, device: torch.device, augment: bool, epochs: int
) -> Choice:
    """Choose where the decoded samples of a run are kept.

    Args:
        asked: `data.cache`.
        dataset: The set, scanned.
        side: The side in pixels of what the network sees.
        device: What is trained on.
        augment: Whether training samples are cut at random.
        epochs: How often the training half is read; what is read once is not worth keeping.
    """
    if asked in {"off", "device"}:
        return Choice("off" if asked == "off" else "device", "asked for")
    needed = _needed(dataset, side, augment)
    budget = memory_room(_SHARE_ASKED if asked == "ram" else _SHARE)(0)
    fits = needed <= budget
    told = f"{_mib(needed)} decoded {'fit' if fits else 'do not fit'} in {_mib(budget)} of memory"
    if asked == "ram":
        return Choice("ram", told, enough=fits)
    count = len(dataset.train) + len(dataset.val)
    on_device, why = cache_fits(count, side, dataset.task, device, dataset.has_ignored)
    if on_device:
        return Choice("device", f"{why} on {device.type}")
    if epochs == 1:
        return Choice("off", f"one epoch reads each image once; on {device.type}, {why}")
    return Choice("ram" if fits else "off", f"{told}; on {device.type}, {why}")


def memory_room(share: float = _SHARE_ASKED) -> Callable[[int], int]:
    """What a cache may still take, by what it has: a share of what is free now, and never the last of it."""
    total, free = host_memory()
    budget = int(free * share)

    def room(taken: int) -> int:
        return min(budget - taken, host_memory()[1] - int(total * _LEFT_FREE))

    return room


def _needed(dataset: Dataset, side: int, augment: bool) -> int:
    """Bytes that both halves take in the host's memory."""
    masks = dataset.task == "segmentation"
    make = Geometry.for_training if augment else Geometry.for_validation
    return stored_bytes(
        make(dataset.task, side), masks, len(dataset.train), _sides(dataset, 0)
    ) + stored_bytes(Geometry.for_validation(dataset.task, side), masks, len(dataset.val), _sides(dataset, 1))


def _sides(dataset: Dataset, half: int) -> Sides | None:
    if dataset.sizes is not None:
        return dataset.sizes[half]
    if dataset.sides is None:
        return None
    count = len((dataset.train, dataset.val)[half])
    return np.full((count, 2), dataset.sides[2], np.uint16)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
