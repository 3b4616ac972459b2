"""Device cache of a training split: whole images, decoded once; random views are cut on the device.

The resized images (`mptui.data.transforms.resize`) are stored as uint8, each at its own size, one after the
other in a flat tensor. The view of a sample is the same box as in a worker. On a CPU it is cut by the same
code, with the same bits; on other devices by batched products with the weights of Pillow's bilinear filter,
which `resampled` approximates: the pixels of a view differ by about 0.4 of 255 on average.

Shapes: N samples of the split, B of a batch, P pixels of all samples, H and W pixels of a crop, S of a view.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import to_device
from mptui.data.core.rng import RandomStream as Numbers
from mptui.data.core.rng import uniforms
from mptui.data.core.types import Sides
from mptui.data.loading.device_cache import LOAD_AHEAD, load_batch
from mptui.data.loading.prefetcher import HostBatch, Prefetcher, SampleSource
from mptui.data.transforms.color_mixup import colours
from mptui.data.transforms.crop import DRAWS, Boxes, Flips, Geometry, cut_image, cut_mask, pixel_box, views
from mptui.data.transforms.normalization import Normalization
from mptui.data.transforms.resize import most_pixels, resized_pixels
from mptui.errors import ConfigError

SPARE = 1.01
"""Factor of memory over the sizes of the files, as a decoder rounds up when it decodes at half size."""
_DRAWN_AT_ONCE = 4096
_PIXELS_AT_ONCE = 1 << 22
"""Largest number of crop pixels per batched product: 100 MB with their positions in the flat tensor."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WholeImages:
    """A split on the device. Entry i is sample i of the split, or its replacement."""

    pixels_P3: torch.Tensor
    """uint8, image after image, row after row."""
    masks_P: torch.Tensor | None
    """int16, at the same positions."""
    labels_N: torch.Tensor
    """int64, on the device."""
    starts_N: Ints
    """Offset of the first pixel of each image, on the host."""
    sizes_N2: Ints
    """Width and height of each."""
    indices: Ints


def device_bytes(resize: int, masks: bool, count: int, sides_N2: Sides | None) -> int:
    """Return the size in bytes of a split's whole images and masks on the device.

    Args:
        resize: The shorter side that images are resized to.
        masks: Whether they have masks.
        count: Number of images.
        sides_N2: The shorter and longer side of each image in pixels; None: unknown, the largest are assumed.
    """
    return _room(resize, count, sides_N2) * (5 if masks else 3)


def load_whole(
    source: SampleSource,
    device: torch.device,
    sides_N2: Sides | None,
    on_progress: Callable[[int, int], None] | None,
) -> WholeImages:
    """Decode the whole split and copy it to `device`.

    Args:
        source: The split, with `whole` set.
        device: The device.
        sides_N2: The shorter and the longer side of each file in pixels; None: unknown.
        on_progress: Called with (done, total) of samples after each batch.

    Raises:
        DataError: Too many samples are bad.
        ConfigError: Masks have ignored pixels, which the host can't count in views cut on the device.
    """
    count = len(source.split)
    kept = _Growing(_room(source.geometry.resize, count, sides_N2), source.masks, device)
    labels = np.zeros(count, np.int64)
    sizes_N2, starts_N = np.zeros((count, 2), np.int64), np.zeros(count, np.int64)
    indices, valid_counts = np.empty(count, np.int64), np.empty(count, np.int64)
    stream = Prefetcher(
        source,
        epoch=0,
        indices=np.arange(count),
        first=0,
        batch_size=load_batch(source.pool.size, source.slot_bytes),
        ahead=LOAD_AHEAD,
        held=1,
    )
    try:
        while batches := stream.take(1):
            batch = batches[0]
            rows = slice(batch.first, batch.first + batch.size)
            assert batch.whole is not None
            sizes_N2[rows], labels[rows] = batch.whole.sizes_B2, batch.labels
            indices[rows], valid_counts[rows] = batch.indices, batch.valid_counts
            starts_N[rows] = kept.append(batch)
            stream.release(batches)
            if on_progress is not None:
                on_progress(rows.stop, count)
    finally:
        stream.close()
    pixels_P3, masks_P = kept.all()
    if masks_P is not None and (valid_counts < sizes_N2.prod(axis=1)).any():
        raise ConfigError(
            'data.cache = "device" excludes ignored mask pixels with random crops',
            hint='Set data.cache to "ram" or "off", or data.augment to "none".',
        )
    return WholeImages(pixels_P3, masks_P, to_device(labels, device), starts_N, sizes_N2, indices)


class _Growing:
    """Flat tensors that grow as images are appended."""

    def __init__(self, room: int, masks: bool, device: torch.device) -> None:
        self._pixels_P3 = torch.empty((room, 3), dtype=torch.uint8, device=device)
        self._masks_P = torch.empty(room, dtype=torch.int16, device=device) if masks else None
        self._used = 0

    def append(self, batch: HostBatch) -> Ints:
        """Append the images of a batch; return the offset of each in pixels."""
        whole = batch.whole
        assert whole is not None
        pixels_B = whole.sizes_B2.prod(axis=1)
        ends_B = self._used + np.cumsum(pixels_B)
        self._need(int(ends_B[-1]))
        new = slice(self._used, int(ends_B[-1]))
        images = [place[: 3 * count] for place, count in zip(whole.images_BX, pixels_B.tolist(), strict=True)]
        self._pixels_P3[new] = torch.from_numpy(np.concatenate(images)).view(-1, 3)
        if self._masks_P is not None and whole.masks_BX is not None:
            masks = [
                place[: 2 * count] for place, count in zip(whole.masks_BX, pixels_B.tolist(), strict=True)
            ]
            self._masks_P[new] = torch.from_numpy(np.concatenate(masks).view(np.int16))
        self._used = new.stop
        starts_B: Ints = ends_B - pixels_B
        return starts_B

    def all(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the pixels and masks appended so far."""
        masks_P = None if self._masks_P is None else self._masks_P[: self._used]
        return self._pixels_P3[: self._used], masks_P

    def _need(self, room: int) -> None:
        """Grow to `room` pixels: files may have become larger since the scan."""
        if room <= len(self._pixels_P3):
            return
        more = room + room // 8
        grown_P3 = torch.empty((more, 3), dtype=torch.uint8, device=self._pixels_P3.device)
        grown_P3[: self._used] = self._pixels_P3[: self._used]
        self._pixels_P3 = grown_P3
        if self._masks_P is not None:
            grown_P = torch.empty(more, dtype=torch.int16, device=self._masks_P.device)
            grown_P[: self._used] = self._masks_P[: self._used]
            self._masks_P = grown_P


def _room(resize: int, count: int, sides_N2: Sides | None) -> int:
    """Return the number of pixels to allocate."""
    if sides_N2 is None:
        return count * most_pixels(resize)
    return int(resized_pixels(sides_N2, resize).sum() * SPARE) + 1


@dataclass(frozen=True, slots=True)
class Views:
    """The boxes and flips of a batch of views, on the host."""

    starts_B: Ints
    widths_B: Ints
    """Widths of the whole images in pixels, i.e. the strides of their rows."""
    heights_B: Ints
    boxes_B4: Boxes
    """Boxes as fractions of the images."""
    flips_B3: Flips

    def __len__(self) -> int:
        return len(self.starts_B)

    def part(self, part: slice) -> "Views":
        """Return some of the views."""
        return Views(
            self.starts_B[part],
            self.widths_B[part],
            self.heights_B[part],
            self.boxes_B4[part],
            self.flips_B3[part],
        )


class WholePass:
    """One epoch over whole images.

    Random numbers are drawn for thousands of samples at once: for a single batch, the overheads of numpy and
    of a copy to the device would dominate.

    Args:
        images: The split.
        order: Its rows, in the order of the epoch.
        geometry: Geometry of the views.
        normalization: Mean and standard deviation of each channel.
        seed: Selects the random views and colors, together with the epoch.
        epoch: Epoch, from 0.
    """

    def __init__(
        self,
        images: WholeImages,
        order: Ints,
        geometry: Geometry,
        normalization: Normalization,
        seed: int,
        epoch: int,
    ) -> None:
        self.images, self.indices = images, images.indices[order]
        self._order = order
        self._rows = to_device(order, images.labels_N.device)
        self._geometry, self._normalization = geometry, normalization
        self._seed, self._epoch = seed, epoch
        self._drawn = range(0)
        self._views: Views | None = None
        self._colour_N43 = torch.empty(0)

    def valid(self, first: int, last: int) -> int:
        """Return the number of valid items of the views; no mask pixel is ignored."""
        return (last - first) * (1 if self.images.masks_P is None else self._geometry.side**2)

    def gather(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cut random views of the samples at positions `first` to `last` of the order.

        Returns:
            images_BSS3 in 0..255 (uint8 on a CPU, else float32), labels_B or masks_BSS, and colours_B43.
        """
        if first not in self._drawn or last > self._drawn.stop:
            self._draw(first, max(last, min(first + _DRAWN_AT_ONCE, len(self.indices))))
        assert self._views is not None
        drawn = slice(first - self._drawn.start, last - self._drawn.start)
        chosen, side = self._views.part(drawn), self._geometry.side
        images_BSS3, masks_BSS = cut(self.images, chosen, side)
        targets = self.images.labels_N.index_select(0, self._rows[first:last])
        return images_BSS3, targets if masks_BSS is None else masks_BSS, self._colour_N43[drawn]

    def _draw(self, first: int, last: int) -> None:
        rows, indices = self._order[first:last], self.indices[first:last]
        widths_B, heights_B = self.images.sizes_N2[rows].T
        draws_BD = uniforms(Numbers.GEOMETRY, self._seed, self._epoch, indices, DRAWS)
        boxes_B4, flips_B3 = views(
            self._geometry, draws_BD, widths_B.astype(np.float64), heights_B.astype(np.float64)
        )
        self._views = Views(self.images.starts_N[rows], widths_B, heights_B, boxes_B4, flips_B3)
        colour_N43 = colours(self._seed, self._epoch, indices, self._normalization)
        self._colour_N43 = to_device(colour_N43, self._rows.device)
        self._drawn = range(first, last)


def cut(images: WholeImages, chosen: Views, side: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views; return images_BSS3 in 0..255 and masks_BSS, or None without masks."""
    if images.pixels_P3.device.type == "cpu":
        return _cut_by_opencv(images, chosen, side)
    return cut_by_products(images, chosen, side)


def _cut_by_opencv(images: WholeImages, chosen: Views, side: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut each view like a worker, with the same bits."""
    count = len(chosen)
    pixels, masks = images.pixels_P3.numpy(), None if images.masks_P is None else images.masks_P.numpy()
    cut_BSS3 = np.empty((count, side, side, 3), np.uint8)
    masks_BSS = None if masks is None else np.empty((count, side, side), np.int16)
    places = zip(chosen.starts_B.tolist(), chosen.heights_B.tolist(), chosen.widths_B.tolist(), strict=True)
    for row, (start, height, width) in enumerate(places):
        box, flips, end = chosen.boxes_B4[row], chosen.flips_B3[row], start + height * width
        cut_BSS3[row] = cut_image(pixels[start:end].reshape(height, width, 3), box, flips, side)
        if masks is not None and masks_BSS is not None:
            masks_BSS[row] = cut_mask(masks[start:end].reshape(height, width), box, flips, side)
    return torch.from_numpy(cut_BSS3), None if masks_BSS is None else torch.from_numpy(masks_BSS)


def cut_by_products(
    images: WholeImages, chosen: Views, side: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views on any device in a few kernels, without a sync."""
    boxes_B4 = _pixel_boxes(chosen)
    parts = list(_portions(boxes_B4))
    cut_BSS3 = torch.cat([_products(images.pixels_P3, chosen.part(p), boxes_B4[p], side) for p in parts])
    if images.masks_P is None:
        return cut_BSS3, None
    return cut_BSS3, _nearest(images.masks_P, chosen, boxes_B4, side)


def _pixel_boxes(chosen: Views) -> Ints:
    """Return left, top, right and bottom of the crops in whole pixels."""
    sizes = zip(chosen.boxes_B4, chosen.widths_B.tolist(), chosen.heights_B.tolist(), strict=True)
    return np.array([pixel_box(box, width, height) for box, width, height in sizes], np.int64)


def _portions(boxes_B4: Ints) -> Iterator[slice]:
    """Split the crops so that each part, padded to the largest crop, has at most `_PIXELS_AT_ONCE` pixels."""
    largest = int((boxes_B4[:, 2:] - boxes_B4[:, :2]).max(axis=0).prod())
    step = max(1, _PIXELS_AT_ONCE // largest)
    return (slice(start, start + step) for start in range(0, len(boxes_B4), step))


def _products(pixels_P3: torch.Tensor, chosen: Views, boxes_B4: Ints, side: int) -> torch.Tensor:
    """Resize crops by one product with the pixel weights per dimension; return float32 images_BSS3."""
    left_B, top_B, right_B, bottom_B = boxes_B4.T
    transposed_B, mirrored_x_B, mirrored_y_B = chosen.flips_B3.T
    widths_B, heights_B = right_B - left_B, bottom_B - top_B
    W, H = int(widths_B.max()), int(heights_B.max())
    facts = np.stack(
        [
            chosen.starts_B + top_B * chosen.widths_B + left_B,
            chosen.widths_B,
            widths_B,
            heights_B,
            transposed_B,
            # a view is mirrored after the transposition, so along the other side of the crop
            np.where(transposed_B, mirrored_y_B, mirrored_x_B),
            np.where(transposed_B, mirrored_x_B, mirrored_y_B),
        ]
    )
    start, stride, width, height, turn, mirror_x, mirror_y = to_device(facts, pixels_P3.device)
    rows_BH = start[:, None] + _up_to(H, height) * stride[:, None]
    places_BHW = rows_BH[:, :, None] + _up_to(W, width)[:, None]
    crops = pixels_P3.index_select(0, places_BHW.flatten()).float().view(len(chosen), H, W * 3)
    rows_BSW3 = torch.bmm(_weights(height, H, side, mirror_y), crops).view(-1, side, W, 3)
    columns = rows_BSW3.transpose(1, 2).reshape(-1, W, side * 3)
    cut_BSS3 = torch.bmm(_weights(width, W, side, mirror_x), columns).view(-1, side, side, 3)
    return torch.where(turn.bool()[:, None, None, None], cut_BSS3, cut_BSS3.transpose(1, 2))


def _up_to(longest: int, length_B: torch.Tensor) -> torch.Tensor:
    """Return the pixel numbers along a side; beyond its end the last one, which gets no weight."""
    numbers = torch.arange(longest, device=length_B.device)
    return torch.minimum(numbers, length_B[:, None] - 1)


def _weights(length_B: torch.Tensor, longest: int, side: int, mirrored_B: torch.Tensor) -> torch.Tensor:
    """Return the weights of Pillow's bilinear filter for a resize of each side to `side` pixels.

    Returns:
        float32 of shape (B, side, longest), whose rows sum to 1.
    """
    length_B11 = length_B[:, None, None].float()
    scale_B11 = length_B11 / side
    centres_S1 = (torch.arange(side, device=length_B.device) + 0.5)[:, None]
    centres_BS1 = torch.where(mirrored_B.bool()[:, None, None], side - centres_S1, centres_S1) * scale_B11
    numbers = torch.arange(longest, device=length_B.device)
    distance = (numbers + 0.5 - centres_BS1).abs() / scale_B11.clamp(min=1.0)
    weights = (1.0 - distance).clamp(min=0.0) * (numbers < length_B11)
    return weights / weights.sum(dim=-1, keepdim=True)


def _nearest(masks_P: torch.Tensor, chosen: Views, boxes_B4: Ints, side: int) -> torch.Tensor:
    """Cut the same views from masks, with the same bits as `cut_mask`."""
    left_B1, top_B1, right_B1, bottom_B1 = boxes_B4.T[:, :, None]
    transposed_B1, mirrored_x_B1, mirrored_y_B1 = chosen.flips_B3.T[:, :, None]
    centres_S = (np.arange(side) + 0.5) / side
    columns_BS = (left_B1 + centres_S * (right_B1 - left_B1)).astype(np.int64)
    rows_BS = (top_B1 + centres_S * (bottom_B1 - top_B1)).astype(np.int64) * chosen.widths_B[:, None]
    along_y_BS = np.where(transposed_B1, columns_BS, rows_BS)
    along_x_BS = np.where(transposed_B1, rows_BS, columns_BS)
    along_y_BS = np.where(mirrored_y_B1, along_y_BS[:, ::-1], along_y_BS) + chosen.starts_B[:, None]
    along_x_BS = np.where(mirrored_x_B1, along_x_BS[:, ::-1], along_x_BS)
    along_y, along_x = to_device(np.stack([along_y_BS, along_x_BS]), masks_P.device)
    places = (along_y[:, :, None] + along_x[:, None]).flatten()
    return masks_P.index_select(0, places).view(-1, side, side)
