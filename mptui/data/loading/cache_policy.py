"""Whether the decoded set is kept, and where: on the device, in the host's memory, or not at all.

What is learnt does not depend on it: views are cut from the same resized images in each mode. So what was
asked for and does not fit is kept elsewhere, with a warning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mptui.data.core.types import Dataset, Sides
from mptui.data.loading.ram_cache import stored_bytes
from mptui.data.loading.whole_images import device_bytes
from mptui.data.transforms.crop import Geometry
from mptui.hardware.host import host_memory
from mptui.registry.samples import SampleKind

CacheMode = Literal["off", "ram", "device"]

_SHARE = 0.5
"""Of the free memory, what a cache may take that `auto` has chosen."""
_SHARE_ASKED = 0.8
_LEFT_FREE = 0.08
"""Of all memory, what is left free in any case."""
_DEVICE_SHARE = 0.2
"""Of the free memory of a device, what both halves of a set may take unasked."""
_HOST_BYTES = 1 << 30
"""The same where the device is the host, at the most."""


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """Where decoded samples are kept, and why."""

    mode: CacheMode
    reason: str
    warning: str | None = None
    """What a person should know who asked for a mode that can't be had in full."""


def choose_cache(
    asked: str,
    dataset: Dataset,
    *,
    side: int,
    resize: int | None,
    device: torch.device,
    augment: bool,
    epochs: int,
) -> CacheChoice:
    """Choose where the decoded samples of a run are kept.

    Args:
        asked: `data.cache`.
        dataset: The set, scanned.
        side: The side in pixels of what the network sees.
        resize: The shorter side in pixels that images are resized to; None: `default_resize`.
        device: What is trained on.
        augment: Whether training samples are cut at random.
        epochs: How often the training half is read; what is read once is not worth keeping.
    """
    if asked == "off":
        return CacheChoice("off", "requested")
    make = Geometry.for_training if augment else Geometry.for_validation
    halves = make(dataset.kind, side, resize), Geometry.for_validation(dataset.kind, side, resize)
    refused, on_device = _on_device(dataset, halves, device, _SHARE_ASKED if asked == "device" else None)
    if asked == "device":
        if not refused:
            return CacheChoice("device", "requested")
        warning = f"data.cache = device: {on_device}; images are cached in memory (data.cache = ram)"
        return CacheChoice("ram", on_device, warning)
    needed = sum(
        stored_bytes(geometry, dataset.kind is SampleKind.MASK, len(split), sides_of(dataset, half))
        for half, (geometry, split) in enumerate(zip(halves, (dataset.train, dataset.val), strict=True))
    )
    budget = memory_room(_SHARE_ASKED if asked == "ram" else _SHARE)(0)
    fits = needed <= budget
    told = f"{_mib(needed)} decoded {'fit' if fits else 'do not fit'} in {_mib(budget)} of memory"
    if asked == "ram":
        warning = f"data.cache = ram: {told}; the other samples are decoded in each epoch"
        return CacheChoice("ram", told, None if fits else warning)
    if not refused:
        return CacheChoice("device", on_device)
    if epochs == 1:
        return CacheChoice("off", f"one epoch reads each image once; {on_device}")
    return CacheChoice("ram" if fits else "off", f"{told}; {on_device}")


def memory_room(share: float = _SHARE_ASKED) -> Callable[[int], int]:
    """What a cache may still take, by what it has: a share of what is free now, and never the last of it."""
    total, free = host_memory()
    budget = int(free * share)

    def room(taken: int) -> int:
        return min(budget - taken, host_memory()[1] - int(total * _LEFT_FREE))

    return room


def sides_of(dataset: Dataset, half: int) -> Sides | None:
    """The shorter and the longer side of each image of a half (0: training), in pixels; None: unknown."""
    if dataset.sizes is not None:
        return dataset.sizes[half]
    if dataset.sides is None:
        return None
    count = len((dataset.train, dataset.val)[half])
    return np.full((count, 2), dataset.sides[2], np.uint16)


def _on_device(
    dataset: Dataset, halves: tuple[Geometry, Geometry], device: torch.device, share: float | None
) -> tuple[bool, str]:
    """Whether samples can't be kept on the device, and what is to be said of it.

    Args:
        dataset: The set.
        halves: What is kept of the samples of each half.
        device: Where they would be kept.
        share: Of its free memory, what they may take; None: what they may take unasked.
    """
    masks = dataset.kind is SampleKind.MASK
    if masks and dataset.has_ignored and halves[0].random:
        what = "masks have ignored pixels, which must be counted before they are on the device"
        return True, f"on {device.type}, {what}"
    needed = sum(
        device_bytes(geometry.resize, masks, len(split), sides_of(dataset, half))
        if geometry.random
        else len(split) * geometry.side**2 * (5 if masks else 3)
        for half, (geometry, split) in enumerate(zip(halves, (dataset.train, dataset.val), strict=True))
    )
    budget = _device_room(device, share)
    refused = needed >= budget
    return refused, f"{_mib(needed)} {'do not fit' if refused else 'fit'} in {_mib(budget)} on {device.type}"


def _device_room(device: torch.device, share: float | None) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * (share or _DEVICE_SHARE))
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0] * (share or _DEVICE_SHARE))
    return memory_room(share)(0) if share else min(_HOST_BYTES, memory_room(_SHARE)(0))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
