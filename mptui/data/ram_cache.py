"""Cache of decoded samples in memory shared by all processes: `data.cache = "ram"`.

An epoch of 1,000 photos at 224 px takes a fifth of the time of one that decodes them (5.3 times as fast on
two cores, `benchmarks.cache`).

An entry is the source of a sample's views: the whole resized image if views are random, otherwise the fixed
view. Views are always cut from the entry, also the first time, so that a sample has the same bits whether it
was cached or not.

The memory is an anonymous file with entries at fixed offsets; unwritten entries take no memory. Imports no
torch, as workers import this.
"""

import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from mptui.data.transforms import (
    DRAWS,
    Geometry,
    cut_image,
    cut_mask,
    most_pixels,
    resized,
    resized_pixels,
    views,
)
from mptui.data.types import RGB, Decoded, PixelFormat, SampleRequest, Sides, Split
from mptui.data.worker import anonymous_file, extend

_HEAD = struct.Struct("<QqII")
"""Head of an entry: `_WHOLE` once it is complete, label, height and width."""
_WHOLE = 0x6D70747569  # any number except 0
_PAGE = 4096
_MAPS: dict[int, mmap.mmap] = {}
_NO_DRAWS = np.zeros((1, DRAWS))
_LOOK_EVERY = 64


@dataclass(frozen=True, slots=True)
class SampleCache:
    """The cache file of a split and the format of its entries; `fd` is the same in all processes."""

    fd: int
    geometry: Geometry
    masks: bool
    pixels: PixelFormat

    @property
    def slot_bytes(self) -> int:
        """Bytes of an entry."""
        return _aligned(_HEAD.size + _most_pixels(self.geometry) * sample_bytes(self.pixels, self.masks))

    def find(self, index: int) -> Decoded | None:
        """Return the entry of sample `index`, or None; the arrays are views of the memory."""
        memory, at = _mapped(self.fd), index * self.slot_bytes
        whole, label, height, width = _HEAD.unpack_from(memory, at)
        if whole != _WHOLE:
            return None
        shape, at = (height, width), at + _HEAD.size
        image_bytes = self.pixels.nbytes * height * width
        mask_bytes = 2 * height * width * self.masks
        # first the one whose values are larger, so that both are aligned
        mask_at, image_at = (at, at + mask_bytes) if self._mask_first else (at + image_bytes, at)
        return Decoded(
            np.ndarray((*shape, self.pixels.bands), self.pixels.dtype, memory, image_at),
            label,
            np.ndarray(shape, np.int16, memory, mask_at) if self.masks else None,
        )

    @property
    def _mask_first(self) -> bool:
        return np.dtype(self.pixels.dtype).itemsize < np.dtype(np.int16).itemsize

    def put(self, index: int, sample: Decoded) -> None:
        """Write the entry of sample `index`, from `form`. The head is written last."""
        at, (height, width) = index * self.slot_bytes, sample.image_HWC.shape[:2]
        mask = b"" if sample.mask_HW is None else np.ascontiguousarray(sample.mask_HW).tobytes()
        image = np.ascontiguousarray(sample.image_HWC).tobytes()
        content = mask + image if self._mask_first else image + mask
        with suppress(OSError):  # the disk is full, if the system has no anonymous memory
            if os.pwrite(self.fd, content, at + _HEAD.size) == len(content):
                os.pwrite(self.fd, _HEAD.pack(_WHOLE, sample.label, height, width), at)

    def form(self, request: SampleRequest) -> Decoded:
        """Read a sample and convert it to an entry.

        Raises:
            BadSampleError: The sample can't be used.
        """
        geometry = self.geometry
        sample = resized(request.read(geometry.resize), geometry.resize, geometry.interpolation)
        if geometry.random:
            return sample
        height, width = sample.image_HWC.shape[:2]
        boxes, flips = views(geometry, _NO_DRAWS, np.array([float(width)]), np.array([float(height)]))
        mask = sample.mask_HW
        return Decoded(
            cut_image(
                sample.image_HWC, boxes[0], flips[0], geometry.side, interpolation=geometry.interpolation
            ),
            sample.label,
            None if mask is None else cut_mask(mask, boxes[0], flips[0], geometry.side),
        )


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """Request that returns a sample from the cache, or reads and caches it."""

    request: SampleRequest
    cache: SampleCache
    index: int
    keep: bool
    """Whether to write the entry."""

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.request.name

    def read(self, side_hint: int | None = None) -> Decoded:
        """Return the entry of the sample; see `SampleRequest.read`."""
        found = self.cache.find(self.index)
        if found is None:
            found = self.cache.form(self.request)
            if self.keep:
                self.cache.put(self.index, found)
        return found


class CachedSplit:
    """A split whose samples are decoded once and cached, as far as memory allows.

    Args:
        split: The samples.
        geometry: Geometry of the views.
        masks: Whether samples have masks.
        pixels: Format of the images.
        room: Returns the bytes still available, given the bytes in use; called repeatedly, as other programs
            use memory too.
        on_full: Called once, when the cache is full, with the numbers of cached and of all samples.
    """

    def __init__(
        self,
        split: Split,
        geometry: Geometry,
        *,
        masks: bool,
        pixels: PixelFormat = RGB,
        room: Callable[[int], int],
        on_full: Callable[[int, int], None],
    ) -> None:
        self.cache = SampleCache(anonymous_file(), geometry, masks, pixels)
        self._split = split
        self._room = room
        self._on_full = on_full
        self._asked = np.zeros(len(split), np.bool_)
        self._kept = 0
        self._full = self._closed = False
        extend(self.cache.fd, len(split) * self.cache.slot_bytes)

    def __len__(self) -> int:
        return len(self._split)

    def request(self, index: int) -> CachedRequest:
        """Return the request for sample `index`."""
        if not self._asked[index] and not self._full:
            if self._kept % _LOOK_EVERY == 0:
                self._check_room()
            self._asked[index] = not self._full
            self._kept += not self._full
        return CachedRequest(self._split.request(index), self.cache, index, bool(self._asked[index]))

    def close(self) -> None:
        """Free the memory."""
        if not self._closed:
            self._closed = True
            _MAPS.pop(self.cache.fd, None)  # the next file may have the same descriptor
            os.close(self.cache.fd)

    def _check_room(self) -> None:
        """Check whether the next few samples fit."""
        taken = os.fstat(self.cache.fd).st_blocks * 512
        few = _LOOK_EVERY * self.cache.slot_bytes
        if self._room(taken) < few:
            self._full = True
            self._on_full(self._kept, len(self))


def sample_bytes(pixels: PixelFormat, masks: bool) -> int:
    """Return the bytes that each pixel of a decoded sample takes."""
    return pixels.nbytes + 2 * masks


def cache_bytes(geometry: Geometry, each: int, count: int, sides_N2: Sides | None) -> int:
    """Return the size in bytes of the entries of a whole split.

    Args:
        geometry: Geometry of the views.
        each: Bytes of a pixel of a sample: `sample_bytes`.
        count: Number of samples.
        sides_N2: The shorter and longer side of each image in pixels; None: unknown, the largest are assumed.
    """
    if not geometry.random or sides_N2 is None:
        return count * _aligned(_HEAD.size + _most_pixels(geometry) * each)
    pixels = resized_pixels(sides_N2, geometry.resize)
    return int((np.ceil((_HEAD.size + pixels * each) / _PAGE) * _PAGE).sum())


def _mapped(fd: int) -> mmap.mmap:
    """Map the whole file into memory, once per process."""
    if fd not in _MAPS:
        _MAPS[fd] = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    return _MAPS[fd]


def _most_pixels(geometry: Geometry) -> int:
    return most_pixels(geometry.resize) if geometry.random else geometry.side**2


def _aligned(size: int) -> int:
    """Round up to whole pages, as memory is allocated by page; small entries are packed."""
    to = _PAGE if size > _PAGE else 64
    return -(-size // to) * to
