"""Device cache of a training split: whole images, decoded once; random views are cut on the device.

The resized images (`mptui.data.transforms.resize`) are stored as decoded, each at its own size, one after the
other in a flat tensor. The view of a sample is the same box as in a worker. On a CPU it is cut by the same
code, with the same bits; on other devices with the weights of Pillow's filter, which `resampled` approximates
if it is bilinear: the pixels of a view differ by about 0.4 of 255 on average.

Shapes: N samples of the split, B of a batch, P pixels of all samples, H and W pixels of a crop, S of a view,
C bands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mptui.data.core.batch import to_device
from mptui.data.core.rng import RandomStream as Numbers
from mptui.data.core.rng import uniforms
from mptui.data.core.types import Sides
from mptui.data.loading.device_cache import LOAD_AHEAD, in_batches, load_batch
from mptui.data.loading.prefetcher import HostBatch, Prefetcher, SampleSource
from mptui.data.transforms.color_mixup import Finish, colours
from mptui.data.transforms.crop import DRAWS, Geometry, cut_image, cut_mask, views
from mptui.data.transforms.crop_on_device import Ints, Views, cut_masks, cut_on_device
from mptui.data.transforms.normalization import Normalization
from mptui.data.transforms.resize import most_pixels, resized_pixels
from mptui.errors import ConfigError, cleaned_up_by
from mptui.registry.samples import Interpolation

SPARE = 1.01
"""Factor of memory over the sizes of the files, as a decoder rounds up when it decodes at half size."""
_DRAWN_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class WholeImages:
    """A split on the device. Entry i is sample i of the split, or its replacement."""

    pixels_PC: torch.Tensor
    """Image after image, row after row; in the type of the decoded values."""
    masks_P: torch.Tensor | None
    """int16, at the same positions."""
    labels_N: torch.Tensor
    """int64, on the device."""
    starts_N: Ints
    """Offset of the first pixel of each image, on the host."""
    sizes_N2: Ints
    """Width and height of each."""
    indices: Ints


def device_bytes(resize: int, each: int, count: int, sides_N2: Sides | None) -> int:
    """Return the size in bytes of a split's whole images and masks on the device.

    Args:
        resize: The shorter side that images are resized to.
        each: Bytes of a pixel of a sample: `sample_bytes`.
        count: Number of images.
        sides_N2: The shorter and longer side of each image in pixels; None: unknown, the largest are assumed.
    """
    return _room(resize, count, sides_N2) * each


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
    kept = _Growing(_room(source.geometry.resize, count, sides_N2), source, device)
    labels = np.zeros(count, np.int64)
    sizes_N2, starts_N = np.zeros((count, 2), np.int64), np.zeros(count, np.int64)
    indices, valid_counts = np.empty(count, np.int64), np.empty(count, np.int64)
    stream = Prefetcher(
        source,
        epoch=0,
        indices=np.arange(count),
        batches=in_batches(count, load_batch(source.pool.size, source.slot_bytes)),
        ahead=LOAD_AHEAD,
        held=1,
    )
    with cleaned_up_by(stream.close):
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
    pixels_PC, masks_P = kept.all()
    if masks_P is not None and (valid_counts < sizes_N2.prod(axis=1)).any():
        raise ConfigError(
            'data.cache = "device" excludes ignored mask pixels with random crops',
            hint='Set data.cache to "ram" or "off", or data.augment to "none".',
        )
    return WholeImages(pixels_PC, masks_P, to_device(labels, device), starts_N, sizes_N2, indices)


class _Growing:
    """Flat tensors that grow as images are appended."""

    def __init__(self, room: int, source: SampleSource, device: torch.device) -> None:
        self._form = source.pixels
        self._pixels_PC = self._pixels(room, device)
        self._masks_P = torch.empty(room, dtype=torch.int16, device=device) if source.masks else None
        self._used = 0

    def append(self, batch: HostBatch) -> Ints:
        """Append the images of a batch; return the offset of each in pixels."""
        whole = batch.whole
        assert whole is not None
        pixels_B = whole.sizes_B2.prod(axis=1)
        ends_B = self._used + np.cumsum(pixels_B)
        self._need(int(ends_B[-1]))
        new = slice(self._used, int(ends_B[-1]))
        each, bands = self._form.nbytes, self._form.bands
        images = [
            place[: each * count] for place, count in zip(whole.images_BX, pixels_B.tolist(), strict=True)
        ]
        values = np.concatenate(images).view(self._form.dtype)
        self._pixels_PC[new] = torch.from_numpy(values).view(-1, bands)
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
        return self._pixels_PC[: self._used], masks_P

    def _pixels(self, room: int, device: torch.device) -> torch.Tensor:
        return torch.empty((room, self._form.bands), dtype=getattr(torch, self._form.dtype), device=device)

    def _need(self, room: int) -> None:
        """Grow to `room` pixels: files may have become larger since the scan."""
        if room <= len(self._pixels_PC):
            return
        more = room + room // 8
        grown_PC = self._pixels(more, self._pixels_PC.device)
        grown_PC[: self._used] = self._pixels_PC[: self._used]
        self._pixels_PC = grown_PC
        if self._masks_P is not None:
            grown_P = torch.empty(more, dtype=torch.int16, device=self._masks_P.device)
            grown_P[: self._used] = self._masks_P[: self._used]
            self._masks_P = grown_P


def _room(resize: int, count: int, sides_N2: Sides | None) -> int:
    """Return the number of pixels to allocate."""
    if sides_N2 is None:
        return count * most_pixels(resize)
    return int(resized_pixels(sides_N2, resize).sum() * SPARE) + 1


class WholePass:
    """One epoch over whole images.

    Random numbers are drawn for thousands of samples at once: for a single batch, the overheads of numpy and
    of a copy to the device would dominate.

    Args:
        images: The split.
        order: Its draws in the order of the epoch, as `EpochOrder.of`.
        geometry: Geometry of the views.
        jitter: Normalisation of images with jittered colours; None: their colours are not jittered.
        seed: Selects the random views and colors, together with the epoch.
        epoch: Epoch, from 0.
    """

    def __init__(
        self,
        images: WholeImages,
        order: Ints,
        geometry: Geometry,
        jitter: Normalization | None,
        seed: int,
        epoch: int,
    ) -> None:
        self._order = order % len(images.indices)
        self.images, self.indices = images, images.indices[self._order] + (order - self._order)
        self._rows = to_device(self._order, images.labels_N.device)
        self._geometry, self._jitter = geometry, jitter
        self._seed, self._epoch = seed, epoch
        self._drawn = range(0)
        self._views: Views | None = None
        self._colour_N43: torch.Tensor | None = None

    def valid(self, first: int, last: int) -> int:
        """Return the number of valid items of the views; no mask pixel is ignored."""
        return (last - first) * (1 if self.images.masks_P is None else self._geometry.side**2)

    def targets(self, first: int, last: int) -> torch.Tensor:
        """Return the labels, or the masks of the views, at positions `first` to `last` of the order."""
        if self.images.masks_P is not None:
            return cut_masks(self.images.masks_P, self._chosen(first, last), self._geometry.side)
        return self.images.labels_N.index_select(0, self._rows[first:last])

    def targets_of(self, parts: Sequence[range], number: int) -> torch.Tensor:
        """Return the targets of one of some ranges of positions."""
        return self.targets(parts[number].start, parts[number].stop)

    def read(self, part: range, finish: Finish) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images_BCHW and the targets of the views at the positions `part` of the order."""
        pixels_BSSC, targets, colour_B43 = self.gather(part.start, part.stop)
        images = finish.plain(pixels_BSSC) if colour_B43 is None else finish.coloured(pixels_BSSC, colour_B43)
        return images, targets

    def gather(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Cut random views of the samples at positions `first` to `last` of the order.

        Returns:
            images_BSSC (in their type on a CPU, else float32), labels_B or masks_BSS, and colours_B43 if
            they are jittered.
        """
        chosen, geometry = self._chosen(first, last), self._geometry
        images_BSSC, masks_BSS = cut(self.images, chosen, geometry.side, geometry.interpolation)
        targets = self.targets(first, last) if masks_BSS is None else masks_BSS
        colour_B43 = None if self._colour_N43 is None else self._colour_N43[self._in_drawn(first, last)]
        return images_BSSC, targets, colour_B43

    def _chosen(self, first: int, last: int) -> Views:
        if first not in self._drawn or last > self._drawn.stop:
            self._draw(first, max(last, min(first + _DRAWN_AT_ONCE, len(self.indices))))
        assert self._views is not None
        return self._views.part(self._in_drawn(first, last))

    def _in_drawn(self, first: int, last: int) -> slice:
        return slice(first - self._drawn.start, last - self._drawn.start)

    def _draw(self, first: int, last: int) -> None:
        rows, indices = self._order[first:last], self.indices[first:last]
        widths_B, heights_B = self.images.sizes_N2[rows].T
        draws_BD = uniforms(Numbers.GEOMETRY, self._seed, self._epoch, indices, DRAWS)
        boxes_B4, flips_B3 = views(
            self._geometry, draws_BD, widths_B.astype(np.float64), heights_B.astype(np.float64)
        )
        self._views = Views(self.images.starts_N[rows], widths_B, heights_B, boxes_B4, flips_B3)
        if self._rows.device.type != "cpu":
            self._views = self._views.placed(self._rows.device)
        if self._jitter is not None:
            colour_N43 = colours(self._seed, self._epoch, indices, self._jitter)
            self._colour_N43 = to_device(colour_N43, self._rows.device)
        self._drawn = range(first, last)


def cut(
    images: WholeImages, chosen: Views, side: int, interpolation: Interpolation = "bilinear"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views; return images_BSSC and masks_BSS, or None without masks."""
    cut_views = _cut_on_host if images.pixels_PC.device.type == "cpu" else cut_on_device
    return cut_views(images.pixels_PC, images.masks_P, chosen, side, interpolation)


def _cut_on_host(
    pixels_PC: torch.Tensor,
    masks_P: torch.Tensor | None,
    chosen: Views,
    side: int,
    interpolation: Interpolation,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut each view like a worker, with the same bits."""
    count = len(chosen)
    pixels, masks = pixels_PC.numpy(), None if masks_P is None else masks_P.numpy()
    bands = pixels.shape[1]
    cut_BSSC = np.empty((count, side, side, bands), pixels.dtype)
    masks_BSS = None if masks is None else np.empty((count, side, side), np.int16)
    places = zip(chosen.starts_B.tolist(), chosen.heights_B.tolist(), chosen.widths_B.tolist(), strict=True)
    for row, (start, height, width) in enumerate(places):
        box, flips, end = chosen.boxes_B4[row], chosen.flips_B3[row], start + height * width
        image_HWC = pixels[start:end].reshape(height, width, bands)
        cut_BSSC[row] = cut_image(image_HWC, box, flips, side, interpolation)
        if masks is not None and masks_BSS is not None:
            masks_BSS[row] = cut_mask(masks[start:end].reshape(height, width), box, flips, side)
    return torch.from_numpy(cut_BSSC), None if masks_BSS is None else torch.from_numpy(masks_BSS)
