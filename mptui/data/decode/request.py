"""Requests that read a sample from an image file, or from an array of images."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mptui.data.core.parts import title_of
from mptui.data.core.types import BadSampleError, Decoded, PixelFormat, Pixels
from mptui.data.decode.image import read_rgb, reason_for
from mptui.data.decode.stored import read_stored


@dataclass(frozen=True, slots=True)
class FileRequest:
    """An image file and its class."""

    path: str
    label: int
    stored: PixelFormat | None = None
    """The format in which the file is read as it is stored; None: as 8-bit RGB."""

    @property
    def name(self) -> str:
        """The path of the file."""
        return title_of(self.path)

    def read(self, side_hint: int | None = None) -> Decoded:
        """Decode the file; see `SampleRequest.read`."""
        if self.stored is not None:
            return Decoded(read_stored(self.path, self.stored).pixels_HWC, label=self.label)
        return Decoded(read_rgb(self.path, side_hint), label=self.label)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """Image `index` of a uint8 array in an `.npy` file, [N, H, W] or [N, H, W, 3], and its class."""

    path: str
    index: int
    label: int

    @property
    def name(self) -> str:
        """Path of the array, and the image's position in it."""
        return f"{self.path}[{self.index}]"

    def read(self, side_hint: int | None = None) -> Decoded:
        """Copy the image out of the file; see `SampleRequest.read`."""
        try:
            image = np.array(_mapped(self.path)[self.index])
        except (OSError, ValueError, IndexError) as error:
            raise BadSampleError(self.name, reason_for(error)) from error
        return Decoded(np.stack([image] * 3, axis=-1) if image.ndim == 2 else image, label=self.label)


@lru_cache(maxsize=8)
def _mapped(path: str) -> Pixels:
    """Map an array into memory, once in a process."""
    array: Pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
