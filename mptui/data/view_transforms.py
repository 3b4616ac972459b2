"""Random transforms of the pixels of one view, where it is cut: those of `TRANSFORMS` with `make`.

A worker imports this, and so torch, only if one is named. Shapes: H and W pixels, C bands.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch

from mptui.data.rng import RandomStream, keys, torch_seeded
from mptui.data.types import Pixels
from mptui.registry.transforms import find_transform


def transformed(pixels_HWC: Pixels, names: Sequence[str], position: tuple[int, int, int]) -> Pixels:
    """Return the pixels of a view after all its transforms.

    Args:
        pixels_HWC: The view.
        names: Its transforms, in their order.
        position: Seed, epoch and index of the sample, on which random numbers depend.
    """
    image_CHW = torch.from_numpy(pixels_HWC.transpose(2, 0, 1).copy())
    with _one_thread():
        for name in names:
            with torch_seeded(_seed(name, *position)):
                image_CHW = made(name)(image_CHW)
    return np.ascontiguousarray(image_CHW.numpy().transpose(1, 2, 0))


@lru_cache(maxsize=64)
def made(name: str) -> Callable[..., Any]:
    """Make a transform, once in a process."""
    make = find_transform(name).make
    assert make is not None, "only such are named for views"
    return make()


def _seed(name: str, seed: int, epoch: int, index: int) -> int:
    """Return the seed of a transform for a sample, below 2**64: another for each name."""
    return int(keys(RandomStream.TRANSFORM, seed ^ crc32(name.encode()), epoch, np.array([index]))[0])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread, as a worker does: sums of several could differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
