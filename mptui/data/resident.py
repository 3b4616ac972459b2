"""A whole split decoded once and kept on the device as uint8: batches are a gather, and crops are made there.

Shapes: N samples of the split, B of a batch, H and W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mptui.data.augment import Finish, colours
from mptui.data.geometry import DRAWS, Geometry, stored_side, views
from mptui.data.seeds import Stream as Numbers
from mptui.data.seeds import uniforms
from mptui.data.stream import Source, Stream
from mptui.data.transfer import Transfer, sent
from mptui.hardware.host import host_memory

_DEVICE_SHARE = 0.2
"""Of the free memory of a device, what both halves of a set may take unasked."""
_HOST_BYTES = 1 << 30
_FINISHED_BYTES = 1 << 28
_DRAWN_AT_ONCE = 4096
_HOST_SHARE = 0.5
_LOAD_BATCH = 64
"""Samples that a process is sent at once to fill the cache: fewer tiny ones cost more than their reading."""
_LOAD_BYTES = 8 << 20
_LOAD_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Resident:
    """The split on the device. Sample i of the split is in row i, or its replacement is."""

    pixels: torch.Tensor
    """uint8 images_NHW3; where `finished`, what the network sees, as float32, with N first in memory."""
    targets: torch.Tensor
    """int64 labels_N or int16 masks_NHW."""
    indices: npt.NDArray[np.int64]
    valid_counts: npt.NDArray[np.int64]
    """Valid items of each whole sample."""
    finished: bool = False

    def finish(self, finish: Finish) -> "Resident":
        """Normalise a small split once and for all: a batch is nothing but a gather then."""
        if self.pixels.nbytes * 4 > _FINISHED_BYTES:
            return self
        return replace(self, pixels=finish.stored(self.pixels), finished=True)


class Pass:
    """One epoch over a resident split.

    Random numbers are drawn for thousands of samples at once: for the few of a batch, the overheads of numpy
    and of a copy to the device would be all of the cost.

    Args:
        resident: The split.
        order: Its rows, in the order of the epoch.
        geometry: What the network sees of a sample.
        seed: Of everything random.
        epoch: The same.
    """

    def __init__(
        self, resident: Resident, order: npt.NDArray[np.int64], geometry: Geometry, seed: int, epoch: int
    ) -> None:
        self.resident, self.indices = resident, resident.indices[order]
        self.valid_counts = resident.valid_counts[order]
        self._rows = sent(order, resident.pixels.device)
        self._geometry, self._seed, self._epoch = geometry, seed, epoch
        self._drawn = range(0)
        self._theta_N23 = self._colour_N43 = torch.empty(0)

    def gather(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The pixels and the targets at positions `first` to `last` of the order, as they are stored."""
        rows = self._rows[first:last]
        return self.resident.pixels.index_select(0, rows), self.resident.targets.index_select(0, rows)

    def gather_views(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Random views of the samples there: float32 images_BHW3 in 0..255, targets and colours_B43."""
        if first not in self._drawn or last > self._drawn.stop:
            self._draw(first, max(last, min(first + _DRAWN_AT_ONCE, len(self.indices))))
        pixels, targets = self.gather(first, last)
        drawn = slice(first - self._drawn.start, last - self._drawn.start)
        images, targets = crop(pixels, targets, self._theta_N23[drawn], self._geometry.side)
        return images, targets, self._colour_N43[drawn]

    def _draw(self, first: int, last: int) -> None:
        indices, device = self.indices[first:last], self._rows.device
        self._theta_N23 = sent(affine(self._geometry, self._seed, self._epoch, indices), device)
        self._colour_N43 = sent(colours(self._seed, self._epoch, indices), device)
        self._drawn = range(first, last)


def load(
    source: Source,
    device: torch.device,
    transfer: Transfer,
    on_progress: Callable[[int, int], None] | None,
) -> Resident:
    """Decode the whole split and put it on `device`.

    Args:
        source: Where it comes from; its geometry must not be random.
        device: Where it goes to.
        transfer: Brings batches there, and decodes them where workers do not.
        on_progress: Told of samples done and in all, now and then.

    Raises:
        DataError: Too many samples are bad.
    """
    count, side = len(source.split), source.geometry.side
    pixels = torch.empty((count, side, side, 3), dtype=torch.uint8, device=device)
    if source.masks:
        targets = torch.empty((count, side, side), dtype=torch.int16, device=device)
    else:
        targets = torch.empty(count, dtype=torch.int64, device=device)
    indices, valid_counts = np.empty(count, np.int64), np.empty(count, np.int64)
    stream = Stream(
        source,
        epoch=0,
        indices=np.arange(count),
        first=0,
        batch_size=_load_batch(source.pool.size, pixels.nbytes // count),
        ahead=_LOAD_AHEAD,
        held=1,
    )
    try:
        while batches := stream.take(1):
            batch = batches[0]
            rows = slice(batch.first, batch.first + batch.size)
            images, found = transfer.finish(batch)
            pixels[rows].copy_(images)
            targets[rows].copy_(found)
            indices[rows], valid_counts[rows] = batch.indices, batch.valid_counts
            transfer.settle([batch.slot])
            stream.release(batches)
            if on_progress is not None:
                on_progress(rows.stop, count)
    finally:
        transfer.settle()
        stream.close()
    return Resident(pixels, targets, indices, valid_counts)


def _load_batch(workers: int, sample_bytes: int) -> int:
    """Samples a batch while the cache is filled; all workers share in each."""
    return max(_LOAD_BATCH, min(_LOAD_BATCH * workers, _LOAD_BYTES // sample_bytes))


def crop(
    pixels_BHW3: torch.Tensor, targets: torch.Tensor, theta_B23: torch.Tensor, side: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut views out of gathered samples, on the device.

    Args:
        pixels_BHW3: uint8 squares.
        targets: labels_B, which stay as they are, or masks_BHW, which are cut as the images are.
        theta_B23: From places in the view to places in the image, of `affine`.
        side: Of the views, in pixels.

    Returns:
        float32 images_BHW3 in 0..255, and the targets.
    """
    grid = _grid(theta_B23, side)
    images = _sampled(pixels_BHW3.permute(0, 3, 1, 2), grid, "bilinear").permute(0, 2, 3, 1)
    if targets.ndim == 3:
        targets = _sampled(targets.unsqueeze(1), grid, "nearest").squeeze(1)
    return images, targets


def cache_fits(
    count: int, side: int, task: str, device: torch.device, has_ignored: bool, budget: int | None = None
) -> tuple[bool, str]:
    """Whether to keep samples on the device, and why.

    Args:
        count: How many would be kept.
        side: The side in pixels of what the network sees.
        task: classification or segmentation.
        device: Where it would be kept.
        has_ignored: Whether masks have pixels that count for nothing: cut on the device, how many there are
            would be unknown to the host.
        budget: Bytes it may take; None: a fifth of a GPU's free memory, of a host's half, and at most 1 GiB.
    """
    if has_ignored and task == "segmentation":
        return False, "masks have ignored pixels, which must be counted before they are on the device"
    if budget is None:
        budget = _free_share(device)
    needed = count * stored_side(side) ** 2 * (5 if task == "segmentation" else 3)
    verb = "fits" if needed < budget else "does not fit"
    return needed < budget, f"{needed / 2**20:,.0f} MiB {verb} in {budget / 2**20:,.0f} MiB"


def _free_share(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _DEVICE_SHARE)
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0] * _DEVICE_SHARE)
    return min(_HOST_BYTES, int(host_memory()[1] * _HOST_SHARE))


def affine(
    geometry: Geometry, seed: int, epoch: int, indices_B: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Random views as matrices (B, 2, 3): a place in the view to its place in the square, in -1..1."""
    sides_B = np.ones(len(indices_B))
    draws_BD = uniforms(Numbers.GEOMETRY, seed, epoch, indices_B, DRAWS)
    boxes_B4, flips_B3 = views(geometry, draws_BD, sides_B, sides_B)
    left, top, right, bottom = boxes_B4.T
    transposed, mirrored_x, mirrored_y = flips_B3.T
    along_x, along_y = np.where(mirrored_x, -1.0, 1.0), np.where(mirrored_y, -1.0, 1.0)
    theta_B23 = np.zeros((len(indices_B), 2, 3))
    # The image's x follows the view's x, or its y where the view is transposed; flips come after that.
    theta_B23[:, 0, 0] = np.where(transposed, 0.0, (right - left) * along_x)
    theta_B23[:, 0, 1] = np.where(transposed, (right - left) * along_y, 0.0)
    theta_B23[:, 1, 0] = np.where(transposed, (bottom - top) * along_x, 0.0)
    theta_B23[:, 1, 1] = np.where(transposed, 0.0, (bottom - top) * along_y)
    theta_B23[:, 0, 2], theta_B23[:, 1, 2] = left + right - 1, top + bottom - 1
    return theta_B23.astype(np.float32)


def _grid(theta_B23: torch.Tensor, side: int) -> torch.Tensor:
    """Where each pixel of the views lies, BHW2, as `F.affine_grid` says.

    That is a product of matrices, which may be in TF32: its 10 bits are a quarter of a pixel in 512.
    """
    places = (2 * torch.arange(side, device=theta_B23.device) + 1) / side - 1
    along_x, along_y, origin = theta_B23[:, None, None].unbind(-1)
    return along_x * places[:, None] + along_y * places[:, None, None] + origin


def _sampled(values_BCHW: torch.Tensor, grid: torch.Tensor, mode: str) -> torch.Tensor:
    return F.grid_sample(values_BCHW.float(), grid, mode=mode, padding_mode="border", align_corners=False)
