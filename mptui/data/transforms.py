"""Views: crop boxes and flips, the same for an image and its mask.

A view is a box in fractions of the image and three flips, so that it applies to an image, its mask, and a
copy of either at another size. Imports no torch, as workers import this.

Shapes: B samples, H and W pixels. Boxes are left, top, right, bottom; flips are transposed, mirrored left to
right, mirrored top to bottom, applied in this order.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mptui.data.core.types import Mask, Pixels
from mptui.data.transforms.resample import flipped, resampled
from mptui.registry.samples import Interpolation, SampleKind

DRAWS = 7
"""Number of random numbers per view: area, aspect ratio, two for the position, three flips."""

CROP_RATIO = (3 / 4, 4 / 3)

CROP_PCT = 0.875
"""Default share of the shorter side in the centre crop: 224 of 256 pixels."""

Boxes = npt.NDArray[np.float64]
Flips = npt.NDArray[np.bool_]
Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How square views of `side` pixels are cut from samples.

    An image is first resized to a shorter side of `resize` pixels (`mptui.data.transforms.resize`), in every
    cache mode and by every decoder, and views are cut from the result: so they do not depend on the cache.

    Images with classes keep their proportions, and a square is cropped. Images with masks are resized whole
    to the square, since each of their pixels counts. Images alone (diffusion) are cropped to the largest
    centre square in training too, as the model learns the distribution of its inputs.
    """

    side: int
    resize: int
    """The shorter side in pixels that images are resized to, never enlarged; at least `side`."""
    keep_proportions: bool
    margin: float = 1.0
    """keep_proportions, no random crop: ratio of the shorter side to the side of the centre crop."""
    crop_scale: tuple[float, float] | None = None
    """Random crops: range of the share of the image's area; None: no random crop."""
    crop_ratio: tuple[float, float] = CROP_RATIO
    """Random crops: range of width over height, before the resize to a square."""
    all_turns: bool = False
    """Random crops: also flip top to bottom and rotate by 90°, for images without an upright orientation."""
    interpolation: Interpolation = "bilinear"
    """How images are resampled, both times."""

    @classmethod
    def for_validation(
        cls,
        kind: SampleKind,
        side: int,
        resize: int | None = None,
        crop_pct: float | None = None,
        interpolation: Interpolation | None = None,
    ) -> "Geometry":
        """Return the geometry of one fixed view: the centre, or with masks the whole image.

        Args:
            kind: Kind of the samples.
            side: Side of the view in pixels.
            resize: The shorter side that images are resized to; None: `default_resize`.
            crop_pct: Images with classes: share of the shorter side in the crop; None: `CROP_PCT`.
            interpolation: How images are resampled; None: bilinear.
        """
        margin = 1.0 / (crop_pct or CROP_PCT) if kind is SampleKind.CLASS else 1.0
        return cls(
            side,
            resize or default_resize(side),
            keep_proportions=kind is not SampleKind.MASK,
            margin=margin,
            interpolation=interpolation or "bilinear",
        )

    @classmethod
    def for_training(
        cls,
        kind: SampleKind,
        side: int,
        resize: int | None = None,
        crop_scale: tuple[float, float] | None = None,
        crop_ratio: tuple[float, float] = CROP_RATIO,
        interpolation: Interpolation | None = None,
    ) -> "Geometry":
        """Return the geometry of random resized crops and flips; images alone have the fixed view.

        Args:
            kind: Kind of the samples; with masks, views are also rotated by 90°.
            side: Side of the views in pixels.
            resize: The shorter side that images are resized to; None: `default_resize`.
            crop_scale: Range of a crop's share of the area; None: `default_crop_scale`.
            crop_ratio: Range of a crop's width over its height.
            interpolation: How images are resampled; None: bilinear.
        """
        fixed = cls.for_validation(kind, side, resize, interpolation=interpolation)
        crop_scale = crop_scale or default_crop_scale(kind, side)
        if crop_scale is None:
            return fixed
        turns = kind is not SampleKind.CLASS
        return replace(
            fixed,
            keep_proportions=not turns,
            margin=1.0,
            crop_scale=crop_scale,
            crop_ratio=crop_ratio,
            all_turns=turns,
        )

    @property
    def random(self) -> bool:
        """Whether views differ from epoch to epoch."""
        return self.crop_scale is not None


def default_resize(side: int) -> int:
    """Return the default shorter side of resized images, so that crops of a quarter are not enlarged."""
    return 2 * side


def default_crop_scale(kind: SampleKind, side: int) -> tuple[float, float] | None:
    """Return the default range of a random crop's share of the area; None: no random crops.

    From 128 pixels on, it is that of Inception and of torchvision's RandomResizedCrop; 8 % of a smaller
    image has too little content. Images with masks are cropped less, as a small crop may hold a single class.
    """
    if kind is SampleKind.CLASS:
        return (0.08, 1.0) if side >= 128 else (0.35, 1.0)
    return (0.4, 1.0) if kind is SampleKind.MASK else None


def views(
    geometry: Geometry,
    draws_BD: npt.NDArray[np.float64],
    widths_B: npt.NDArray[np.float64],
    heights_B: npt.NDArray[np.float64],
) -> tuple[Boxes, Flips]:
    """Compute the views of B images from `DRAWS` random numbers each: boxes (B, 4) and flips (B, 3)."""
    if geometry.crop_scale is None:
        sizes_B2 = _centre_sizes(geometry, widths_B, heights_B)
        return _boxes(sizes_B2, np.full_like(sizes_B2, 0.5)), np.zeros((len(draws_BD), 3), bool)
    sizes_B2 = _crop_sizes(geometry, draws_BD, widths_B, heights_B)
    flips_B3 = draws_BD[:, 4:7] < 0.5
    if not geometry.all_turns:
        flips_B3[:, [0, 2]] = False
    return _boxes(sizes_B2, draws_BD[:, 2:4]), flips_B3


def cut_image(
    image_HWC: Pixels, box: Boxes, flips: Flips, side: int, interpolation: Interpolation = "bilinear"
) -> Pixels:
    """Cut a view from an image: crop, antialiased resize, flips."""
    left, top, right, bottom = pixel_box(box, image_HWC.shape[1], image_HWC.shape[0])
    square = resampled(image_HWC[top:bottom, left:right], side, side, interpolation)
    transposed, mirrored_x, mirrored_y = flips.tolist()
    return flipped(square, transposed=transposed, mirrored_x=mirrored_x, mirrored_y=mirrored_y)


def cut_mask(mask_HW: Mask, box: Boxes, flips: Flips, side: int) -> Mask:
    """Cut the same view from a mask: the value at the centre of each output pixel."""
    left, top, right, bottom = pixel_box(box, mask_HW.shape[1], mask_HW.shape[0])
    centres = (np.arange(side) + 0.5) / side
    columns = (left + centres * (right - left)).astype(np.intp)
    rows = (top + centres * (bottom - top)).astype(np.intp)
    mask = mask_HW[rows[:, None], columns]
    transposed, mirrored_x, mirrored_y = flips
    if transposed:
        mask = mask.T
    if mirrored_x:
        mask = mask[:, ::-1]
    return np.ascontiguousarray(mask[::-1] if mirrored_y else mask)


def pixel_box(box: Boxes, width: int, height: int) -> tuple[int, int, int, int]:
    """Round a box to whole pixels, at least one."""
    left, top, right, bottom = np.rint(box * (width, height, width, height)).astype(int).tolist()
    left, top = min(left, width - 1), min(top, height - 1)
    return left, top, min(max(right, left + 1), width), min(max(bottom, top + 1), height)


def pixel_boxes(boxes_B4: Boxes, widths_B: Sizes, heights_B: Sizes) -> Sizes:
    """Return `pixel_box` of B boxes, int64 of shape (B, 4)."""
    left_top_B2, right_bottom_B2 = np.split(
        np.rint(boxes_B4 * np.stack([widths_B, heights_B] * 2, axis=1)).astype(np.int64), 2, axis=1
    )
    ends_B2 = np.stack([widths_B, heights_B], axis=1)
    left_top_B2 = np.minimum(left_top_B2, ends_B2 - 1)
    right_bottom_B2 = np.minimum(np.maximum(right_bottom_B2, left_top_B2 + 1), ends_B2)
    return np.concatenate([left_top_B2, right_bottom_B2], axis=1)


def _share(geometry: Geometry, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    assert geometry.crop_scale is not None
    least, largest = geometry.crop_scale
    return least + draws[..., 0] * (largest - least)


def _ratio(geometry: Geometry, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, high = np.log(geometry.crop_ratio)
    ratio: npt.NDArray[np.float64] = np.exp(low + draws[..., 1] * (high - low))
    return ratio


def _crop_sizes(
    geometry: Geometry,
    draws_BD: npt.NDArray[np.float64],
    widths_B: npt.NDArray[np.float64],
    heights_B: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return width and height of random crops as fractions, limited to the image."""
    shape_B = np.sqrt(widths_B / heights_B) if geometry.keep_proportions else 1.0
    share_B, ratio_B = _share(geometry, draws_BD), _ratio(geometry, draws_BD)
    sizes_B2 = np.stack([np.sqrt(share_B * ratio_B) / shape_B, np.sqrt(share_B / ratio_B) * shape_B], axis=1)
    return np.minimum(sizes_B2, 1.0)


def _centre_sizes(
    geometry: Geometry, widths_B: npt.NDArray[np.float64], heights_B: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return width and height of centre crops as fractions."""
    sizes_B2 = np.stack([widths_B, heights_B], axis=1)
    if not geometry.keep_proportions:
        return np.ones_like(sizes_B2)
    shorter_B1 = sizes_B2.min(axis=1, keepdims=True)
    # An image no larger than the crop is used whole: cropping and enlarging it would lose its border.
    margin_B1 = np.clip(shorter_B1 / geometry.side, 1.0, geometry.margin)
    fractions_B2: npt.NDArray[np.float64] = shorter_B1 / margin_B1 / sizes_B2
    return fractions_B2


def _boxes(sizes_B2: npt.NDArray[np.float64], places_B2: npt.NDArray[np.float64]) -> Boxes:
    corners_B2 = (1.0 - sizes_B2) * places_B2
    return np.concatenate([corners_B2, corners_B2 + sizes_B2], axis=1)
