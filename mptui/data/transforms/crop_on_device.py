"""Cuts random views from whole images that lie on an accelerator.

Crops are resized with the weights of Pillow's filters; `resampled` approximates the bilinear one. On a GPU
`crop_kernel` does it, in one launch for a batch. Where it can't be compiled, and on other accelerators, it is
done by products with the weights, in some sixty launches for 100 MB of values.

Shapes: B samples, P pixels of all images, H and W pixels of a crop, S of a view, C bands.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import take_rows, to_device
from mptui.data.transforms.crop import Boxes, Flips, pixel_boxes
from mptui.registry.samples import Interpolation

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

    def part(self, part: slice) -> "Views":
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
    interpolation: Interpolation = "bilinear",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cut views as `cut_by_products`, by the kernel where there is one."""
    if not has_kernel(pixels_PC.device):
        return cut_by_products(pixels_PC, masks_P, chosen, side, interpolation)
    cut_BSSC = kernel()(pixels_PC, chosen.crops(pixels_PC.device), side, interpolation == "bicubic")
    return cut_BSSC, None if masks_P is None else cut_masks(masks_P, chosen, side)


@cache
def kernel() -> Callable[[torch.Tensor, torch.Tensor, int, bool], torch.Tensor]:
    """Return `crop_kernel.cut_views` as an operation of torch, so that it runs without storage, too.

    Made when it is needed: it takes 20 ms, and Triton longer.
    """

    @torch.library.custom_op("mptui::cut_views", mutates_args=())
    def cut(pixels_PC: torch.Tensor, crops_B7: torch.Tensor, side: int, cubic: bool) -> torch.Tensor:
        from mptui.data.transforms.crop_kernel import cut_views

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
            [_products(pixels_PC, chosen.part(p), boxes_B4[p], side, interpolation) for p in parts]
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
    pixels_PC: torch.Tensor, chosen: Views, boxes_B4: Ints, side: int, interpolation: Interpolation
) -> torch.Tensor:
    """Resize crops by one product with the pixel weights per dimension; return float32 images_BSSC."""
    W, H = (boxes_B4[:, 2:] - boxes_B4[:, :2]).max(axis=0).tolist()
    crops_B7 = chosen.crops(pixels_PC.device)
    start, stride, width, height, turn, mirror_x, mirror_y = crops_B7.unbind(dim=1)
    rows_BH = start[:, None] + _up_to(H, height) * stride[:, None]
    places_BHW = rows_BH[:, :, None] + _up_to(W, width)[:, None]
    bands = pixels_PC.shape[1]
    crops = take_rows(pixels_PC, places_BHW.flatten()).float().view(len(chosen), H, W * bands)
    rows = torch.bmm(_weights(height, H, side, mirror_y, interpolation), crops)
    if interpolation == "bicubic":
        _clip(rows, pixels_PC.dtype)
    columns = rows.view(-1, side, W, bands).transpose(1, 2).reshape(-1, W, side * bands)
    cut_BSSC = torch.bmm(_weights(width, W, side, mirror_x, interpolation), columns)
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
    length_B: torch.Tensor, longest: int, side: int, mirrored_B: torch.Tensor, interpolation: Interpolation
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
