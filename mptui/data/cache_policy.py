"""Chooses the cache of decoded samples: on the device, in host memory, or none.

Views are cut from the same resized images in each mode, with the same bits on a CPU; on a GPU, `device`
resamples them there, and pixels differ by less than 1 of 255 in the mean. A requested mode that does not fit
is replaced by another, with a warning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mptui.data.device_cache import device_bytes
from mptui.data.ram_cache import cache_bytes, sample_bytes
from mptui.data.transforms import Transforms
from mptui.data.types import Dataset, Sides
from mptui.hardware.host import host_memory
from mptui.registry.names import SampleKind

CacheMode = Literal["off", "ram", "device"]

_SHARE = 0.5
"""Share of the free memory for a cache chosen by `auto`."""
_SHARE_ASKED = 0.8
"""Share of the free memory for a requested cache."""
_LEFT_FREE = 0.08
"""Share of the total memory that always stays free."""
_DEVICE_SHARE = 0.2
"""Share of the free memory of a device that `auto` may use for both halves of a set."""
_HOST_BYTES = 1 << 30
"""Largest size of the device cache with `auto` if the device is the CPU."""


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """The chosen cache of decoded samples, with the reason."""

    mode: CacheMode
    reason: str
    warning: str | None = None
    """Why the requested mode can't be used completely."""


def choose_cache(
    asked: str,
    dataset: Dataset,
    *,
    halves: tuple[Transforms, Transforms],
    device: torch.device,
    epochs: int,
    latent_bytes: int = 0,
    processes: int = 1,
    least: Callable[[int], int] = lambda size: size,
) -> CacheChoice:
    """Choose the cache of a run's decoded samples.

    Args:
        asked: `data.cache`.
        dataset: The scanned dataset.
        halves: What becomes of the samples of training and of validation.
        device: The device of the run.
        epochs: Number of epochs; a single one does not benefit from a cache.
        latent_bytes: Bytes of the latents of an image, which the device holds in place of it; 0: images.
        processes: Processes of this machine that each have such a cache.
        least: Returns the least of the sizes that the processes of the run call this with.
    """
    if asked == "off":
        return CacheChoice("off", "requested")
    if dataset.draws and asked == "auto":
        return CacheChoice("off", "samples draw random numbers when they are read, others in each epoch")
    on_share = _SHARE_ASKED if asked == "device" else None
    refused, on_device = _on_device(
        dataset, halves, device, latent_bytes, room=lambda: least(_device_room(device, on_share, processes))
    )
    if asked == "device":
        if not refused:
            return CacheChoice("device", "requested")
        warning = f"data.cache = device: {on_device}; images are cached in memory (data.cache = ram)"
        return CacheChoice("ram", on_device, warning)
    each = sample_bytes(dataset.pixels, dataset.kind is SampleKind.MASK)
    needed = sum(
        cache_bytes(transforms.geometry, each, len(split), sides_of(dataset, half))
        for half, (transforms, split) in enumerate(zip(halves, (dataset.train, dataset.val), strict=True))
    )
    budget = least(memory_room(_SHARE_ASKED if asked == "ram" else _SHARE, processes)(0))
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


def memory_room(share: float = _SHARE_ASKED, processes: int = 1) -> Callable[[int], int]:
    """Return a function from the bytes that a cache uses to the bytes that it may still allocate.

    Args:
        share: Its share of the free memory.
        processes: Processes of this machine among which it is divided.
    """
    total, free = host_memory()
    budget = int(free * share / processes)

    def room(taken: int) -> int:
        return min(budget - taken, host_memory()[1] - int(total * _LEFT_FREE))

    return room


def sides_of(dataset: Dataset, half: int) -> Sides | None:
    """Return the shorter and longer side of each image of a half (0: training) in pixels; None: unknown."""
    if dataset.sizes is not None:
        return dataset.sizes[half]
    if dataset.sides is None:
        return None
    count = len((dataset.train, dataset.val)[half])
    return np.full((count, 2), dataset.sides[2], np.uint16)


def _on_device(
    dataset: Dataset,
    halves: tuple[Transforms, Transforms],
    device: torch.device,
    latent_bytes: int,
    *,
    room: Callable[[], int],
) -> tuple[bool, str]:
    """Return whether samples can't be cached on the device, and the reason.

    Args:
        dataset: The dataset.
        halves: As of `choose_cache`.
        device: The device.
        latent_bytes: As of `choose_cache`.
        room: Returns the bytes on it that the cache may have.
    """
    masks = dataset.kind is SampleKind.MASK
    counts_ignored = masks and dataset.has_ignored and halves[0].geometry.random
    if counts_ignored:
        what = "masks have ignored pixels, which must be counted before they are on the device"
        return True, f"on {device.type}, {what}"
    if of_views := halves[0].of_views:
        return True, f"on {device.type}, views would be cut without {', '.join(of_views)}"
    each = sample_bytes(dataset.pixels, masks)
    needed = sum(
        len(split) * (latent_bytes or transforms.geometry.side**2 * each)
        if transforms.has_fixed_pixels
        else device_bytes(transforms.geometry.resize, each, len(split), sides_of(dataset, half))
        for half, (transforms, split) in enumerate(zip(halves, (dataset.train, dataset.val), strict=True))
    )
    budget = room()
    refused = needed >= budget
    return refused, f"{_mib(needed)} {'do not fit' if refused else 'fit'} in {_mib(budget)} on {device.type}"


def _device_room(device: torch.device, share: float | None, processes: int) -> int:
    """Return the bytes for a cache on a device; `share` of its free memory, None: the limit of `auto`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * (share or _DEVICE_SHARE))
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0] * (share or _DEVICE_SHARE))
    free = memory_room(share or _SHARE, processes)(0)
    return free if share else min(_HOST_BYTES // processes, free)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
