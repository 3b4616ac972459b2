"""Random transforms of the pixels of one view, where it is cut: those with `make`, and the person's own.

A worker imports this, and so torch, only if one is named. Shapes: H and W pixels, C bands.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch

from mptui.data.rng import RandomStream, keys, seeded, torch_seeded
from mptui.data.types import IGNORE, Mask, Pixels
from mptui.errors import OwnCodeError
from mptui.registry.own_code import (
    allow,
    call,
    described,
    fault_in_library,
    fault_of,
    is_given,
    is_own,
)
from mptui.registry.transforms import find_transform


def transformed(
    pixels_HWC: Pixels,
    mask_HW: Mask | None,
    names: Sequence[str],
    position: tuple[int, int, int],
    *,
    folder: str,
    classes: int,
) -> tuple[Pixels, Mask | None]:
    """Return the pixels and the mask of a view after all its transforms.

    Args:
        pixels_HWC: The view.
        mask_HW: Its mask; None: it has none.
        names: Its transforms, in their order.
        position: Seed, epoch and index of the sample, on which random numbers depend.
        folder: Where the person's own transforms are imported from.
        classes: Number of classes, below which values of masks are.

    Raises:
        OwnCodeError: A transform of the person's own has a bug, or returns another type or shape.
    """
    image_CHW = torch.from_numpy(pixels_HWC.transpose(2, 0, 1).copy())
    mask = None if mask_HW is None else torch.from_numpy(mask_HW.astype(np.int64))
    with _one_thread():
        for name in names:
            transform, seed = made(name, folder), _seed(name, *position)
            if is_own(name):
                with seeded(seed):
                    image_CHW, mask = _by_own(name, transform, image_CHW, mask, classes=classes)
            else:
                with torch_seeded(seed):
                    image_CHW = transform(image_CHW)
    pixels = np.ascontiguousarray(image_CHW.numpy().transpose(1, 2, 0))
    return pixels, None if mask is None else mask.numpy().astype(np.int16)


@lru_cache(maxsize=64)
def made(name: str, folder: str) -> Callable[..., Any]:
    """Make a transform, once in a process.

    Raises:
        ConfigError: There is none of that name, or it can't be called.
        Exception: Whatever the person's code raises.
    """
    if is_own(name) and not is_given(name):
        allow(folder)
    make = find_transform(name).make
    assert make is not None, "only such are named for views"
    return make()


def _by_own(
    name: str,
    transform: Callable[..., Any],
    image_CHW: torch.Tensor,
    mask_HW: torch.Tensor | None,
    *,
    classes: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Call the person's transform with image and mask, of the types that torchvision's tell apart by."""
    from torchvision import tv_tensors

    given = [tv_tensors.Image(image_CHW)]
    if mask_HW is not None:
        given.append(tv_tensors.Mask(mask_HW))
    try:
        found = call(name, transform, *given)
    except Exception as error:
        fault = fault_of(error) or fault_in_library(error, name, transform)
        if fault is None:
            raise
        raise fault from error
    if mask_HW is None:
        return _checked_image(name, found, image_CHW), None
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise OwnCodeError(
            f"{name}: it returned {_form(found)} for an image and its mask",
            hint="return image, mask: a tuple of two",
        )
    image = _checked_image(name, found[0], image_CHW)
    return image, _checked_mask(name, found[1], mask_HW, classes)


def _checked_image(name: str, found: object, given: torch.Tensor) -> torch.Tensor:
    alike = isinstance(found, torch.Tensor) and (found.dtype, found.shape) == (given.dtype, given.shape)
    if not alike:
        raise OwnCodeError(
            f"{name}: it returned {_form(found)} for an image of {_form(given)}",
            hint="return an image of the same type and shape; mptui resizes and normalises",
        )
    return _plain(found)


def _checked_mask(name: str, found: object, given: torch.Tensor, classes: int) -> torch.Tensor:
    alike = isinstance(found, torch.Tensor) and found.shape == given.shape
    if not alike or found.dtype.is_floating_point or found.dtype == torch.bool:  # type: ignore[attr-defined]
        raise OwnCodeError(
            f"{name}: it returned {_form(found)} for a mask of {_form(given)}",
            hint="return a mask of integers of the same shape",
        )
    mask = _plain(found)
    low, high = (int(value) for value in mask.aminmax())
    if low < IGNORE or high >= classes:
        value = low if low < IGNORE else high
        raise OwnCodeError(
            f"{name}: its mask has the value {value}, but there are {classes} classes",
            hint="use the numbers of classes, and -1 to ignore",
        )
    return mask


def _plain(found: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor, as was checked
    tensor: torch.Tensor = found.detach().cpu().as_subclass(torch.Tensor)
    return tensor


def _form(value: object) -> str:
    """Describe a value for a message: `uint8 [3, 32, 32]`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return described(value)


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
