"""Caches a training split on the device as whole images, decoded once; random views are cut there.

Nothing is read, decoded or copied in a step; only the order of an epoch and the boxes of its views come from
the host. On an H200, 64 views of 224 px take 0.26 ms of a step (docs/gpu.md); what the cache is worth there
beside `data.cache = "ram"` is not measured yet.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import take_rows, to_device
from mptui.data.reading import HostBatch, Prefetcher, SampleSource
from mptui.data.rng import RandomStream as Numbers
from mptui.data.rng import uniforms
from mptui.data.to_device import Finish, Transfer, colours
from mptui.data.transforms import (
    DRAWS,
    Boxes,
    Flips,
    Geometry,
    Normalization,
    cut_image,
    cut_mask,
    most_pixels,
    pixel_boxes,
    resized_pixels,
    views,
)
from mptui.data.types import Sides
from mptui.errors import ConfigError, DataError, cleaned_up_by
from mptui.registry.names import Interpolation

# Device cache of a split with one fixed view per sample: decoded once, stored, gathered as batches
# -------------------------------------------------------------------------------------------------
# Shapes: N samples of the split, B of a batch, H and W pixels, C bands.

_FINISHED_BYTES = 1 << 28
_LOAD_BATCH = 64
"""Smallest batch size while the cache is filled: smaller ones cost more than reading their samples."""
_LOAD_BYTES = 8 << 20
LOAD_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Resident:
    """A split on the device. Row i is sample i of the split, or its replacement."""

    pixels: torch.Tensor
    """images_NHWC as decoded; if `finished`, the float32 input of the network, with N first in memory: images
    or latents."""
    targets: torch.Tensor
    """int64 labels_N or int16 masks_NHW."""
    indices: npt.NDArray[np.int64]
    valid_counts: npt.NDArray[np.int64]
    """Number of valid items of each sample."""
    finished: bool = False

    def finish(self, finish: Finish) -> "Resident":
        """Normalise a small split in advance, so that a batch needs only a gather."""
        if self.finished or self.pixels.numel() * 4 > _FINISHED_BYTES:
            return self
        return replace(self, pixels=finish.stored(self.pixels), finished=True)


class Pass:
    """One epoch over a resident split.

    Args:
        resident: The split.
        order: Its rows, in the order of the epoch.
    """

    def __init__(self, resident: Resident, order: npt.NDArray[np.int64]) -> None:
        self.resident = resident
        self.indices = resident.indices[order]
        # sums up to each position: the count of a range is a subtraction, where a sum would cost 5 us a batch
        self._valid_before = np.concatenate(([0], np.cumsum(resident.valid_counts[order])))
        self._rows = to_device(order, resident.pixels.device)

    def valid(self, first: int, last: int) -> int:
        """Return the number of valid items of the samples at positions `first` to `last`."""
        return int(self._valid_before.item(last) - self._valid_before.item(first))

    def targets(self, first: int, last: int) -> torch.Tensor:
        """Return the targets at positions `first` to `last` of the order."""
        return self.resident.targets.index_select(0, self._rows[first:last])

    def targets_of(self, parts: Sequence[range], number: int) -> torch.Tensor:
        """Return the targets of one of some ranges of positions."""
        return self.targets(parts[number].start, parts[number].stop)

    def read(self, part: range, finish: Finish) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images_BCHW and the targets at the positions `part` of the order."""
        rows = self._rows[part.start : part.stop]
        finished = finish.unstored if self.resident.finished else finish.plain
        return finished(take_rows(self.resident.pixels, rows)), self.resident.targets.index_select(0, rows)


def load(
    source: SampleSource,
    device: torch.device,
    transfer: Transfer,
    finish: Finish,
    *,
    on_progress: Callable[[int, int], None] | None,
) -> Resident:
    """Decode the whole split and copy it to `device`; with a VAE, its latents.

    Args:
        source: The split; its geometry must not be random.
        device: The device.
        transfer: Copies batches to the device.
        finish: Encodes images, if it has a VAE.
        on_progress: Called with (done, total) of samples after each batch.

    Raises:
        DataError: Too many samples are bad, or latents are not finite.
        ConfigError: The VAE can't encode in 16 bits.
    """
    count, side = len(source.split), source.geometry.side
    form = source.pixels
    dtype: torch.dtype = getattr(torch, form.dtype)
    shape = (count, *((side, side, form.bands) if finish.vae is None else finish.latent_shape))
    pixels = torch.empty(shape, dtype=dtype if finish.vae is None else torch.float32, device=device)
    if source.masks:
        targets = torch.empty((count, side, side), dtype=torch.int16, device=device)
    else:
        targets = torch.empty(count, dtype=torch.int64, device=device)
    indices, valid_counts = np.empty(count, np.int64), np.empty(count, np.int64)
    stream = Prefetcher(
        source,
        epoch=0,
        indices=np.arange(count),
        batches=in_batches(count, load_batch(source.pool.size, side**2 * form.bands * dtype.itemsize)),
        ahead=LOAD_AHEAD,
        held=1,
    )
    with cleaned_up_by(stream.close), cleaned_up_by(transfer.wait_for_copies):
        while batches := stream.take(1):
            batch = batches[0]
            rows = slice(batch.first, batch.first + batch.size)
            images, found = transfer.finish(batch)
            pixels[rows].copy_(images if finish.vae is None else finish.stored(images))
            targets[rows].copy_(found)
            indices[rows], valid_counts[rows] = batch.indices, batch.valid_counts
            transfer.wait_for_copies([batch.slot])
            stream.release(batches)
            if on_progress is not None:
                on_progress(rows.stop, count)
    if finish.vae is not None:
        _check_finite(pixels, source, indices)
    return Resident(pixels, targets, indices, valid_counts, finished=finish.vae is not None)


def _check_finite(latents: torch.Tensor, source: SampleSource, indices: npt.NDArray[np.int64]) -> None:
    """Check the latents of a split. Syncs.

    Raises:
        DataError: Some are not finite.
    """
    # a sum is finite if its terms are: no copy of all latents
    is_finite_N = torch.isfinite(latents.flatten(1).sum(1)).cpu().numpy()
    if (bad := indices[~is_finite_N]).size:
        first = source.split.request(int(bad[0])).name
        raise DataError(
            f"the VAE gives values that are not finite for {len(bad):,} of {len(indices):,} images: {first}",
            hint="check these images, or use another model.vae",
        )


def load_batch(workers: int, sample_bytes: int) -> int:
    """Return the batch size while a cache is filled; all workers share each batch."""
    return max(_LOAD_BATCH, min(_LOAD_BATCH * workers, _LOAD_BYTES // sample_bytes))


def in_batches(count: int, size: int) -> list[range]:
    """Return the positions of `count` samples in batches of `size`; the last may have fewer."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


# Cuts random views from whole images that lie on an accelerator
# --------------------------------------------------------------
# Crops are resized with the weights of Pillow's filters; `resampled` approximates the bilinear one. On a
# GPU `crop_kernel` does it, in one launch for a batch. Where it can't be compiled, and on other
# accelerators, it is done by products with the weights, in some sixty launches for 100 MB of values.
#
# Shapes: B samples, P pixels of all images, H and W pixels of a crop, S of a view, C bands.

_VALUES_AT_ONCE = 3 << 22
"""Largest number of crop values per batched product: 100 MB of RGB with the positions in the flat tensor."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Views:
    """The boxes and flips of some views, on the host."""

    starts_B: Ints
    widths_B: Ints
    """Widths of the whole images in pixels, i.e. the strides of their rows."""
    heights_B: Ints
    boxes_B4: Boxes
    """Boxes as fractions of the images."""
    flips_B3: Flips
    crops_B7: torch.Tensor | None = None
    """From `placed`."""

    def __len__(self) -> int:
        return len(self.starts_B)

    def subset(self, part: slice) -> "Views":
        """Return some of the views."""
        return Views(
            self.starts_B[part],
            self.widths_B[part],
            self.heights_B[part],
            self.boxes_B4[part],
            self.flips_B3[part],
            None if self.crops_B7 is None else self.crops_B7[part],
        )

    def pixel_boxes(self) -> Ints:
        """Return left, top, right and bottom of the crops in whole pixels."""
        return pixel_boxes(self.boxes_B4, self.widths_B, self.heights_B)

    def placed(self, device: torch.device) -> "Views":
        """Return the views with their crops on a device: one copy serves many batches."""
        return replace(self, crops_B7=self.crops(device))

    def crops(self, device: torch.device) -> torch.Tensor:
        """Return what a device needs of the views.

        Returns:
            int64 crops_B7: place of the first pixel in the flat tensor, stride of a row, width, height,
            whether the crop is transposed, and before that mirrored left to right and top to bottom.
        """
        if self.crops_B7 is not None:
            return self.crops_B7
        left_B, top_B, right_B, bottom_B = self.pixel_boxes().T
        transposed_B, mirrored_x_B, mirrored_y_B = self.flips_B3.T
        crops = (
            self.starts_B + top_B * self.widths_B + left_B,
            self.widths_B,
            right_B - left_B,
            bottom_B - top_B,
            transposed_B,
            # a view is mirrored after the transposition, so along the other side of the crop
            np.where(transposed_B, mirrored_y_B, mirrored_x_B),
            np.where(transposed_B, mirrored_x_B, mirrored_y_B),
        )
        return to_device(np.stack(crops, axis=1), device)


def cut_on_device(
    pixels_PC: torch.Tensor,
    masks_P: torch.Tensor | None,
    chosen: Views,
    side: int,
    *,
    interpolation: Interpolation = "bilinear",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views as `cut_by_products`, by the kernel where there is one."""
    if not has_kernel(pixels_PC.device):
        return cut_by_products(pixels_PC, masks_P, chosen, side, interpolation=interpolation)
    cut_BSSC = kernel()(pixels_PC, chosen.crops(pixels_PC.device), side, interpolation == "bicubic")
    return cut_BSSC, None if masks_P is None else cut_masks(masks_P, chosen, side)


@cache
def kernel() -> Callable[[torch.Tensor, torch.Tensor, int, bool], torch.Tensor]:
    """Return `crop_kernel.cut_views` as an operation of torch, so that it runs without storage, too.

    Made when it is needed: it takes 20 ms, and Triton longer.
    """

    @torch.library.custom_op("mptui::cut_views", mutates_args=())
    def cut(pixels_PC: torch.Tensor, crops_B7: torch.Tensor, side: int, cubic: bool) -> torch.Tensor:
        from mptui.data.crop_kernel import cut_views

        with torch.cuda.device(pixels_PC.device):  # Triton launches on the current one
            return cut_views(pixels_PC, crops_B7, side, cubic=cubic)

    @cut.register_fake
    def without_storage(
        pixels_PC: torch.Tensor, crops_B7: torch.Tensor, side: int, cubic: bool
    ) -> torch.Tensor:
        return pixels_PC.new_empty((len(crops_B7), side, side, pixels_PC.shape[1]), dtype=torch.float32)

    return cut


@cache
def has_kernel(device: torch.device) -> bool:
    """Whether a device has the kernel, and it cuts as the products do; Triton needs a C compiler.

    The first call compiles it, in about a second, and waits for the device.
    """
    if device.type != "cuda":
        return False
    try:
        pixels_PC = torch.arange(0, 63 * 3 * 37, 37, device=device).to(torch.uint8).view(63, 3)
        sizes = np.array([9]), np.array([7])
        chosen = Views(
            np.array([0]), *sizes, np.array([[0.1, 0.0, 1.0, 0.9]]), np.array([[True, False, True]])
        )
        found = kernel()(pixels_PC, chosen.crops(device), 4, False)
        expected, _ = cut_by_products(pixels_PC, None, chosen, 4)
        return torch.allclose(found, expected, atol=0.5)
    except Exception:  # noqa: BLE001 - whatever a compiler raises, the products need none
        return False


def cut_by_products(
    pixels_PC: torch.Tensor,
    masks_P: torch.Tensor | None,
    chosen: Views,
    side: int,
    *,
    interpolation: Interpolation = "bilinear",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views on any device in a few kernels, without a sync.

    Args:
        pixels_PC: The images, one after the other, row after row.
        masks_P: Their masks, at the same positions.
        chosen: The views.
        side: S, of the views.
        interpolation: How images are resampled.

    Returns:
        float32 images_BSSC, and masks_BSS or None without masks.
    """
    boxes_B4 = chosen.pixel_boxes()
    chosen = chosen.placed(pixels_PC.device)
    parts = list(_portions(boxes_B4, pixels_PC.shape[1]))
    with _without_tf32() if pixels_PC.dtype != torch.uint8 else nullcontext():
        cut_BSSC = torch.cat(
            [
                _products(pixels_PC, chosen.subset(p), boxes_B4[p], side, interpolation=interpolation)
                for p in parts
            ]
        )
    return cut_BSSC, None if masks_P is None else cut_masks(masks_P, chosen, side)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Compute products in full float32: TF32 would keep the upper 11 bits of a value."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _portions(boxes_B4: Ints, bands: int) -> Iterator[slice]:
    """Split the crops so that each part, padded to the largest crop, has at most `_VALUES_AT_ONCE` values."""
    largest = int((boxes_B4[:, 2:] - boxes_B4[:, :2]).max(axis=0).prod())
    step = max(1, _VALUES_AT_ONCE // (largest * bands))
    return (slice(start, start + step) for start in range(0, len(boxes_B4), step))


def _products(
    pixels_PC: torch.Tensor, chosen: Views, boxes_B4: Ints, side: int, *, interpolation: Interpolation
) -> torch.Tensor:
    """Resize crops by one product with the pixel weights per dimension; return float32 images_BSSC."""
    W, H = (boxes_B4[:, 2:] - boxes_B4[:, :2]).max(axis=0).tolist()
    crops_B7 = chosen.crops(pixels_PC.device)
    start, stride, width, height, turn, mirror_x, mirror_y = crops_B7.unbind(dim=1)
    rows_BH = start[:, None] + _up_to(H, height) * stride[:, None]
    places_BHW = rows_BH[:, :, None] + _up_to(W, width)[:, None]
    bands = pixels_PC.shape[1]
    crops = take_rows(pixels_PC, places_BHW.flatten()).float().view(len(chosen), H, W * bands)
    rows = torch.bmm(_weights(height, H, side, mirror_y, interpolation=interpolation), crops)
    if interpolation == "bicubic":
        _clip(rows, pixels_PC.dtype)
    columns = rows.view(-1, side, W, bands).transpose(1, 2).reshape(-1, W, side * bands)
    cut_BSSC = torch.bmm(_weights(width, W, side, mirror_x, interpolation=interpolation), columns)
    if interpolation == "bicubic":
        _clip(cut_BSSC, pixels_PC.dtype)
    cut_BSSC = cut_BSSC.view(-1, side, side, bands)
    return torch.where(turn.bool()[:, None, None, None], cut_BSSC, cut_BSSC.transpose(1, 2))


def _clip(values: torch.Tensor, dtype: torch.dtype) -> None:
    """Clip float32 values in place to those of pixels of `dtype`, as Pillow does after each dimension.

    A cubic kernel overshoots. Pillow 13 chooses the order of the dimensions by the shape of the image, so
    values that are clipped after the first may differ from its own.
    """
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        values.clamp_(limits.min, limits.max)


def _up_to(longest: int, length_B: torch.Tensor) -> torch.Tensor:
    """Return the pixel numbers along a side; beyond its end the last one, which gets no weight."""
    numbers = torch.arange(longest, device=length_B.device)
    return torch.minimum(numbers, length_B[:, None] - 1)


def _weights(
    length_B: torch.Tensor, longest: int, side: int, mirrored_B: torch.Tensor, *, interpolation: Interpolation
) -> torch.Tensor:
    """Return the weights of Pillow's filter for a resize of each side to `side` pixels.

    Returns:
        float32 of shape (B, side, longest), whose rows sum to 1.
    """
    length_B11 = length_B[:, None, None].float()
    scale_B11 = length_B11 / side
    centres_S1 = (torch.arange(side, device=length_B.device) + 0.5)[:, None]
    centres_BS1 = torch.where(mirrored_B.bool()[:, None, None], side - centres_S1, centres_S1) * scale_B11
    numbers = torch.arange(longest, device=length_B.device)
    distance = (numbers + 0.5 - centres_BS1).abs() / scale_B11.clamp(min=1.0)
    kernel = _cubic(distance) if interpolation == "bicubic" else (1.0 - distance).clamp(min=0.0)
    weights = kernel * (numbers < length_B11)
    return weights / weights.sum(dim=-1, keepdim=True)


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Return the cubic convolution kernel with a = -0.5: Keys 1981, equation 15."""
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return torch.where(distance < 1.0, near, far * (distance < 2.0))


def cut_masks(masks_P: torch.Tensor, chosen: Views, side: int) -> torch.Tensor:
    """Cut views from masks alone, with the same bits as `cut_mask`; return masks_BSS."""
    left_B1, top_B1, right_B1, bottom_B1 = chosen.pixel_boxes().T[:, :, None]
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


# Device cache of a training split: whole images, decoded once; random views are cut on the device
# ------------------------------------------------------------------------------------------------
# The resized images (`mptui.data.transforms`) are stored as decoded, each at its own size, one after
# the other in a flat tensor. The view of a sample is the same box as in a worker. On a CPU it is cut by the
# same code, with the same bits; on other devices with the weights of Pillow's filter, which `resampled`
# approximates if it is bilinear: the pixels of a view differ by about 0.4 of 255 on average.
#
# Shapes: N samples of the split, B of a batch, P pixels of all samples, H and W pixels of a crop, S of a
# view, C bands.

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
            hint='set data.cache to "ram" or "off", or data.augment to "none"',
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
        *,
        seed: int,
        epoch: int,
    ) -> None:
        self._order = order % len(images.indices)
        self.images = images
        self.indices = images.indices[self._order] + (order - self._order)
        self._rows = to_device(self._order, images.labels_N.device)
        self._geometry = geometry
        self._jitter = jitter
        self._seed = seed
        self._epoch = epoch
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
        return self._views.subset(self._in_drawn(first, last))

    def _in_drawn(self, first: int, last: int) -> slice:
        return slice(first - self._drawn.start, last - self._drawn.start)

    def _draw(self, first: int, last: int) -> None:
        rows, indices = self._order[first:last], self.indices[first:last]
        widths_B, heights_B = self.images.sizes_N2[rows].T
        draws_BD = uniforms(Numbers.GEOMETRY, self._seed, self._epoch, indices, count=DRAWS)
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
    return cut_views(images.pixels_PC, images.masks_P, chosen, side, interpolation=interpolation)


def _cut_on_host(
    pixels_PC: torch.Tensor,
    masks_P: torch.Tensor | None,
    chosen: Views,
    side: int,
    *,
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
        cut_BSSC[row] = cut_image(image_HWC, box, flips, side, interpolation=interpolation)
        if masks is not None and masks_BSS is not None:
            masks_BSS[row] = cut_mask(masks[start:end].reshape(height, width), box, flips, side)
    return torch.from_numpy(cut_BSSC), None if masks_BSS is None else torch.from_numpy(masks_BSS)
