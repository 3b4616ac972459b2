"""Random transforms of a batch of normalised images on the device: those of `TRANSFORMS` with `apply`.

Shapes: B samples, C channels, H and W pixels.
"""

from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import to_device
from mptui.data.rng import RandomStream, uniforms

_PAD = 1 / 8
"""Of the side: 4 of 32 pixels, as He et al. (2016, section 4.2) have it."""
_ERASED = 0.25
_ERASED_AREA = (0.02, 1 / 3)
_ERASED_RATIO = 0.3
_CUT = 1 / 2


def transform_draws(
    name: str, seed: int, epoch: int, indices_B: npt.NDArray[np.int64], *, count: int
) -> npt.NDArray[np.float64]:
    """Draw the numbers of a transform for each sample, (B, count): others for each name."""
    return uniforms(RandomStream.TRANSFORM, seed ^ crc32(name.encode()), epoch, indices_B, count=count)


def pad_crop(images_BCHW: torch.Tensor, draws_B2: npt.NDArray[np.float64]) -> torch.Tensor:
    """Move each image by up to an eighth of its side; what comes in is mirrored at the edge."""
    B, _, H, W = images_BCHW.shape
    rows_BH, columns_BW = (
        to_device(_moved(side, draws), images_BCHW.device)
        for side, draws in ((H, draws_B2[:, 0]), (W, draws_B2[:, 1]))
    )
    samples_B11 = torch.arange(B, device=images_BCHW.device)[:, None, None]
    moved_BHWC = images_BCHW.permute(0, 2, 3, 1)[samples_B11, rows_BH[:, :, None], columns_BW[:, None]]
    moved_BCHW = moved_BHWC.permute(0, 3, 1, 2)
    return moved_BCHW.contiguous() if images_BCHW.is_contiguous() else moved_BCHW


def _moved(side: int, draws_B: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the pixels of a side that is moved, (B, side)."""
    pad = max(1, round(side * _PAD))
    first_B1 = np.floor(draws_B * (2 * pad + 1)).astype(np.int64)[:, None] - pad
    places = np.abs(first_B1 + np.arange(side))
    moved_BS: npt.NDArray[np.int64] = np.where(places < side, places, 2 * (side - 1) - places)
    return moved_BS


def erase(images_BCHW: torch.Tensor, draws_B5: npt.NDArray[np.float64]) -> torch.Tensor:
    """Set a rectangle of a quarter of the images to 0, the mean: random erasing (Zhong et al. 2020)."""
    H, W = images_BCHW.shape[2:]
    chosen_B, area_B, ratio_B, place_y_B, place_x_B = draws_B5.T
    least, most = _ERASED_AREA
    share_B = (least + (most - least) * area_B) * (chosen_B < _ERASED)
    log_ratio = np.log(_ERASED_RATIO)
    ratio_B = np.exp(log_ratio - 2 * log_ratio * ratio_B)
    sizes_B2 = np.stack([np.sqrt(share_B * ratio_B), np.sqrt(share_B / ratio_B)], axis=1).clip(max=1.0)
    sizes_B2 = np.rint(sizes_B2 * (H, W))
    first_B2 = np.floor((np.array((H, W)) - sizes_B2 + 1) * np.stack([place_y_B, place_x_B], axis=1))
    return _filled(images_BCHW, first_B2, first_B2 + sizes_B2)


def cutout(images_BCHW: torch.Tensor, draws_B2: npt.NDArray[np.float64]) -> torch.Tensor:
    """Set a square of half the side to 0, the mean; it may reach over the edge (DeVries and Taylor 2017)."""
    sides = np.array(images_BCHW.shape[2:])
    size = np.maximum(1, np.rint(sides * _CUT))
    first_B2 = np.floor(draws_B2 * sides) - size // 2
    return _filled(images_BCHW, first_B2, first_B2 + size)


def _filled(
    images_BCHW: torch.Tensor, first_B2: npt.NDArray[np.float64], end_B2: npt.NDArray[np.float64]
) -> torch.Tensor:
    """Set rectangles to 0, given the row and column where each begins and ends."""
    corners_4B1 = np.concatenate([first_B2, end_B2], axis=1).T[:, :, None].astype(np.int64)
    top, left, bottom, right = to_device(np.ascontiguousarray(corners_4B1), images_BCHW.device)
    H, W = (torch.arange(side, device=images_BCHW.device) for side in images_BCHW.shape[2:])
    inside_BHW = ((top <= H) & (bottom > H))[:, :, None] & ((left <= W) & (right > W))[:, None]
    return images_BCHW.masked_fill_(inside_BHW[:, None], 0.0)
