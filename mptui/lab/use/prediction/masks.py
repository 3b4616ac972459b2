"""Makes masks at the size of the original images.

Logits are interpolated bilinearly to the size of the image, and each pixel gets the class of the highest: so
outlines are smooth. Resizing the mask itself by nearest neighbour would draw each of its pixels as a block.

Shapes: B images, K classes, H and W pixels of the network, h and w of the original image.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mptui.data.core.types import BadSampleError
from mptui.data.decode.image import opened, orientation_of, stored_size
from mptui.data.decode.stored import upright_tiff_size
from mptui.lab.use.prediction.inputs import InputFiles

_NUMBERS_AT_ONCE = 1 << 25
"""Interpolated logits held at a time; a mask of more is made of strips."""
_MOST_IN_BYTES = 256
_THREADS = 4

Size = tuple[int, int]
"""Height and width in pixels."""


def upright_size(path: str, *, as_stored: bool) -> Size | None:
    """Return the size of an image as it is decoded, from its header; None if it can't be read.

    Args:
        path: The file.
        as_stored: Whether it is read with all its bands.
    """
    if as_stored and (size := upright_tiff_size(path)) is not None:
        return size
    try:
        with opened(path) as image:
            width, height = stored_size(image)
            return (width, height) if orientation_of(image) >= 5 else (height, width)
    except BadSampleError:
        return None


def mask_of(scores_KHW: torch.Tensor, size: Size) -> torch.Tensor:
    """Return the mask of an image at its own size, as numbers of classes on the device.

    Args:
        scores_KHW: Logits, float32, or their difference from anything that is the same for all classes.
        size: Height and width of the mask.

    Returns:
        mask_hw: uint8, or int16 for more than 256 classes.
    """
    K, H, _ = scores_KHW.shape
    h, w = size
    dtype = torch.uint8 if K <= _MOST_IN_BYTES else torch.int16
    # half-pixel centres, as in F.interpolate
    centres_h = ((torch.arange(h, device=scores_KHW.device) + 0.5) * (H / h) - 0.5).clamp(0, H - 1)
    above_h = centres_h.long()
    below_h, share_h = (above_h + 1).clamp(max=H - 1), centres_h - above_h
    strips = []
    step = max(1, _NUMBERS_AT_ONCE // (K * max(w, scores_KHW.shape[2])))
    for first in range(0, h, step):
        rows = slice(first, first + step)
        strip_KhW = torch.lerp(
            scores_KHW[:, above_h[rows]], scores_KHW[:, below_h[rows]], share_h[rows, None]
        )
        wide_Khw = F.interpolate(strip_KhW, size=w, mode="linear", align_corners=False)
        strips.append(wide_Khw.argmax(dim=0).to(dtype))
    return torch.cat(strips)


class MaskMaker:
    """Makes the masks of a batch, as the result of a `Predictor`: all in one flat tensor.

    Args:
        files: The files.
        as_stored: Whether they are read with all their bands.

    Attributes:
        sizes: Size of each original image whose mask was made and not yet taken; None if it can't be read.
    """

    def __init__(self, files: InputFiles, *, as_stored: bool) -> None:
        self._files, self._size = files, partial(upright_size, as_stored=as_stored)
        self._threads = ThreadPoolExecutor(_THREADS)
        self.sizes: dict[int, Size | None] = {}

    def __enter__(self) -> "MaskMaker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()

    def __call__(self, scores_BKHW: torch.Tensor, indices: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the masks of images, one after the other."""
        paths = [self._files.paths[index] for index in indices.tolist()]
        sizes = list(self._threads.map(self._size, paths))  # while the device computes
        self.sizes |= dict(zip(indices.tolist(), sizes, strict=True))
        masks = [
            scores_KHW.new_empty(0, dtype=torch.uint8)
            if size is None
            else mask_of(scores_KHW, size).flatten()
            for scores_KHW, size in zip(scores_BKHW, sizes, strict=True)
        ]
        return torch.cat(masks)

    def taken(self, masks: torch.Tensor, indices: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the masks in a result of `__call__`, as arrays of the sizes of the images."""
        at = 0
        for index in indices.tolist():
            height, width = self.sizes.pop(index) or (0, 0)
            yield masks[at : at + height * width].numpy().reshape(height, width)
            at += height * width
