"""Views: crops and flips, the same for an image and its mask; resizing. Imports no torch."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui.data.types import Decoded, Mask, Pixels, Sides
from mptui.registry.names import Interpolation, SampleKind
from mptui.registry.transforms import find_transform, transforms_of

# Views: crop boxes and flips, the same for an image and its mask
# ---------------------------------------------------------------
# A view is a box in fractions of the image and three flips, so that it applies to an image, its mask, and a
# copy of either at another size. Imports no torch, as workers import this.
#
# Shapes: B samples, H and W pixels. Boxes are left, top, right, bottom; flips are transposed, mirrored left
# to right, mirrored top to bottom, applied in this order.

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

    An image is first resized to a shorter side of `resize` pixels (`mptui.data.transforms`), in every
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
    flip: bool = False
    """Mirror left to right at random."""
    vertical_flip: bool = False
    """Mirror top to bottom at random."""
    turn: bool = False
    """Rotate by a random multiple of 90°."""
    interpolation: Interpolation = "bilinear"
    """How images are resampled, both times."""

    @classmethod
    def for_validation(
        cls,
        kind: SampleKind,
        side: int,
        resize: int | None = None,
        *,
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
        *,
        names: Collection[str] | None = None,
        crop_scale: tuple[float, float] | None = None,
        crop_ratio: tuple[float, float] = CROP_RATIO,
        crop_pct: float | None = None,
        interpolation: Interpolation | None = None,
    ) -> "Geometry":
        """Return the geometry of random crops, flips and turns; images alone have the fixed view.

        Args:
            kind: Kind of the samples.
            side: Side of the views in pixels.
            resize: The shorter side that images are resized to; None: `default_resize`.
            names: Those of `TRANSFORMS` that a view has; None: the default ones.
            crop_scale: Range of a crop's share of the area; None: `default_crop_scale`.
            crop_ratio: Range of a crop's width over its height.
            crop_pct: As of `for_validation`, if there are no random crops.
            interpolation: How images are resampled; None: bilinear.
        """
        fixed = cls.for_validation(kind, side, resize, crop_pct=crop_pct, interpolation=interpolation)
        if kind is SampleKind.IMAGE:
            return fixed
        names = transforms_of("default", kind) if names is None else names
        turned = replace(
            fixed, flip="flip" in names, vertical_flip="vertical_flip" in names, turn="turn" in names
        )
        if "crop" not in names:
            return turned
        scale = crop_scale or default_crop_scale(kind, side)
        return replace(turned, margin=1.0, crop_scale=scale, crop_ratio=crop_ratio)

    @property
    def random(self) -> bool:
        """Whether views differ from epoch to epoch."""
        return self.crop_scale is not None or self.flip or self.vertical_flip or self.turn


def default_resize(side: int) -> int:
    """Return the default shorter side of resized images, so that crops of a quarter are not enlarged."""
    return 2 * side


SMALL_CROPS = (0.6, 1.0)
"""Range of a random crop's share of the area of small images, which are whole objects, cut out already."""


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
    flips_B3 = _flips(geometry, draws_BD)
    if geometry.crop_scale is None:
        sizes_B2 = _centre_sizes(geometry, widths_B, heights_B)
        return _boxes(sizes_B2, np.full_like(sizes_B2, 0.5)), flips_B3
    sizes_B2 = _crop_sizes(geometry, draws_BD, widths_B, heights_B)
    return _boxes(sizes_B2, draws_BD[:, 2:4]), flips_B3


def _flips(geometry: Geometry, draws_BD: npt.NDArray[np.float64]) -> Flips:
    """Return which views are transposed, mirrored left to right, and mirrored top to bottom."""
    flips_B3: Flips = draws_BD[:, 4:7] < 0.5
    mirrors = geometry.flip or geometry.vertical_flip
    if not geometry.turn:
        return flips_B3 & (False, geometry.flip, geometry.vertical_flip)
    if not mirrors:  # a rotation transposes and mirrors an even number of times
        flips_B3[:, 1] = flips_B3[:, 0] ^ flips_B3[:, 2]
    return flips_B3  # with a mirror image, turns make all eight


def cut_image(
    image_HWC: Pixels, box: Boxes, flips: Flips, side: int, *, interpolation: Interpolation = "bilinear"
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


# Mean and standard deviation of an image's channels. Imports no torch, as the plan imports this
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Normalization:
    """What is subtracted from each channel, and what divides it.

    Values of uint8 are in 0..1, all others as they are stored.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Normalises pixels to -1..1."""


def default_normalization(kind: SampleKind) -> Normalization:
    """Return the normalisation where nothing else is known: of ImageNet; of images alone to -1..1."""
    return HALF if kind is SampleKind.IMAGE else IMAGENET


@dataclass(frozen=True, slots=True)
class Transforms:
    """What becomes of each sample on its way into a batch."""

    geometry: Geometry
    """How views are cut."""
    normalization: Normalization
    names: tuple[str, ...] = ()
    """Those of `TRANSFORMS` that training images have."""
    mixup_alpha: float = 0.0
    """Beta(alpha, alpha) of mixup in training, not of images alone; 0: off."""
    cutmix_alpha: float = 0.0
    """The same of cutmix."""
    channels_last: bool = True
    """Images are NHWC in memory."""

    @property
    def has_fixed_pixels(self) -> bool:
        """Whether the pixels of a sample are the same in each epoch until they are normalised."""
        return not self.geometry.random and "colour" not in self.names and not self.of_views

    @property
    def of_views(self) -> tuple[str, ...]:
        """Those of `names` that change the pixels of a view where it is cut, on the host."""
        return tuple(name for name in self.names if find_transform(name).make)


# Antialiased resampling of images by the filters of Pillow. Imports no torch
# ---------------------------------------------------------------------------
# Bicubic is computed by Pillow itself, as OpenCV's does not antialias: cubic convolution with a = -0.5
# (Keys 1981, https://doi.org/10.1109/TASSP.1981.1163711), with a kernel as wide as four times the scale.
#
# Bilinear is a fast approximation. Pillow's filter is a triangle as wide as the scale s, which removes
# aliasing. Here it is composed of vectorised OpenCV operations, at a third of the cost: smoothing at the
# old size, then linear interpolation. For an integer s = n, interpolating a triangle sampled at each pixel
# gives that triangle exactly; in between, the triangles of n and n + 1 are mixed so that the smoothing has
# the right variance, (s² - 1)/6. Images that shrink to a quarter or less are averaged over whole blocks
# first, as Pillow does with `reducing_gap`.
#
# For 1,000 photos at 224 px (`benchmarks.input`), views differ from Pillow's by 0.35 of 255 on average, in
# the worst photo by 2 and in the worst pixel by 37; if the JPEG was decoded at a smaller size, which is
# sharper than Pillow's filter, by 0.5, 3 and 41.
#
# An image of any `PixelFormat` keeps its type: values are computed in float32, and rounded once per
# operation.
#
# Shapes: H and W pixels, C bands.

# Several workers run in parallel, so each uses one thread.
cv2.setNumThreads(1)

_BLOCKS_FROM = 4.0
_MOST_BANDS = 4
"""Largest number of bands that OpenCV 5 resizes."""
_WEIGHT = 256
"""Denominator of the weights with which OpenCV filters bytes."""


def resampled(
    image_HWC: Pixels, width: int, height: int, interpolation: Interpolation = "bilinear"
) -> Pixels:
    """Resize an image to `width` x `height` pixels, without keeping its proportions."""
    if interpolation == "bicubic":
        return _bicubic(image_HWC, width, height)
    bands = image_HWC.shape[2]
    if bands <= _MOST_BANDS:
        return _resampled(image_HWC, width, height).reshape(height, width, bands)
    parts = [image_HWC[..., first : first + _MOST_BANDS] for first in range(0, bands, _MOST_BANDS)]
    return np.concatenate([resampled(np.ascontiguousarray(part), width, height) for part in parts], axis=2)


def _resampled(image_HW3: Pixels, width: int, height: int) -> Pixels:
    scale_x, scale_y = image_HW3.shape[1] / width, image_HW3.shape[0] / height
    if max(scale_x, scale_y) >= _BLOCKS_FROM:
        fewer = (round(width * _between(scale_x)), round(height * _between(scale_y)))
        image_HW3 = _pixels(cv2.resize(image_HW3, fewer, interpolation=cv2.INTER_AREA))
        scale_x, scale_y = image_HW3.shape[1] / width, image_HW3.shape[0] / height
    if max(scale_x, scale_y) > 1:
        along_x, along_y = _smoothing(scale_x), _smoothing(scale_y)
        if max(along_x.size, along_y.size) > 1:
            smooth = cv2.sepFilter2D(image_HW3, -1, along_x, along_y, borderType=cv2.BORDER_REPLICATE)
            image_HW3 = _pixels(smooth)
    return _pixels(cv2.resize(image_HW3, (width, height), interpolation=cv2.INTER_LINEAR))


def _bicubic(image_HWC: Pixels, width: int, height: int) -> Pixels:
    """Resize by Pillow: 8-bit RGB at once, other formats band by band; integers are rounded and clipped."""
    dtype, size = image_HWC.dtype, (width, height)
    if dtype == np.uint8 and image_HWC.shape[2] == 3:
        return np.array(Image.fromarray(image_HWC).resize(size, Image.Resampling.BICUBIC))
    in_pillow = np.uint8 if dtype == np.uint8 else np.float32
    bands = [Image.fromarray(band_HW.astype(in_pillow)) for band_HW in np.moveaxis(image_HWC, 2, 0)]
    resized = [np.asarray(band.resize(size, Image.Resampling.BICUBIC)) for band in bands]
    resized_HWC: Pixels = np.stack(resized, axis=2)
    if resized_HWC.dtype != dtype:
        limits = np.iinfo(dtype)
        resized_HWC = np.rint(resized_HWC).clip(limits.min, limits.max).astype(dtype)
    return resized_HWC


def resized_mask(mask_HW: Mask, height: int, width: int) -> Mask:
    """Resize a mask to `height` x `width` pixels by nearest neighbour."""
    if mask_HW.shape == (height, width):
        return mask_HW
    rows = (np.arange(height) + 0.5) * (mask_HW.shape[0] / height)
    columns = (np.arange(width) + 0.5) * (mask_HW.shape[1] / width)
    return mask_HW[np.ix_(rows.astype(np.intp), columns.astype(np.intp))]


def flipped(image_HWC: Pixels, *, transposed: bool, mirrored_x: bool, mirrored_y: bool) -> Pixels:
    """Transpose an image, mirror it left to right, mirror it top to bottom, in this order."""
    if image_HWC.shape[2] == 3:
        return _flipped_rgb(image_HWC, transposed, mirrored_x, mirrored_y)
    if transposed:
        image_HWC = image_HWC.transpose(1, 0, 2)
    return np.ascontiguousarray(image_HWC[:: -1 if mirrored_y else 1, :: -1 if mirrored_x else 1])


def _flipped_rgb(image_HW3: Pixels, transposed: bool, mirrored_x: bool, mirrored_y: bool) -> Pixels:
    """Flip three bands by OpenCV, which is several times as fast as numpy."""
    if transposed:
        image_HW3 = _pixels(cv2.transpose(image_HW3))
    if mirrored_x or mirrored_y:
        image_HW3 = _pixels(cv2.flip(image_HW3, -1 if mirrored_x and mirrored_y else int(mirrored_x)))
    return image_HW3


def _between(scale: float) -> float:
    """Return the scale that remains after averaging whole blocks: 2 to 3, or `scale` if none are averaged."""
    return scale / int(scale / 2) if scale >= _BLOCKS_FROM else scale


@lru_cache(maxsize=4096)
def _smoothing(scale: float) -> npt.NDArray[np.float32]:
    """Return the weights to smooth an axis before it is interpolated at every `scale`-th pixel."""
    n = int(max(scale, 1.0))
    wide_share = max(0.0, scale**2 - n**2) / (2 * n + 1)
    distance = np.abs(np.arange(-n, n + 1))
    narrow, wide = (n - distance).clip(min=0) / n**2, (n + 1 - distance) / (n + 1) ** 2
    weights = np.rint(((1 - wide_share) * narrow + wide_share * wide) * _WEIGHT)
    weights[n] += _WEIGHT - weights.sum()  # the sum stays 1, which keeps the brightness
    kept = weights[np.flatnonzero(weights)[0] :][: np.count_nonzero(weights)]
    return (kept / _WEIGHT).astype(np.float32)


def _pixels(image: "cv2.typing.MatLike") -> Pixels:
    return image


# Resizes whole images before views are cut from them
# ---------------------------------------------------
# Every image is resized to a shorter side of `data.resize` pixels with its proportions; smaller ones are
# not enlarged. This happens before any cache, and `mptui prepare` stores the result, so that views do not
# depend on where images are cached. Imports no torch, as workers import this.

LONGEST = 3
"""Aspect ratio above which an image is resized further, so that none takes more memory than three squares of
`resize`."""


def resized_size(width: int, height: int, resize: int) -> tuple[int, int]:
    """Return the resized width and height in pixels of an image of this size."""
    scale = min(1.0, resize / min(height, width), sqrt(LONGEST * resize * resize / (height * width)))
    if scale == 1.0:
        return width, height
    # Rounded down, so that a scale limited by the area keeps the area below its limit.
    return max(1, int(width * scale + 1e-6)), max(1, int(height * scale + 1e-6))


def resized(sample: Decoded, resize: int, interpolation: Interpolation = "bilinear") -> Decoded:
    """Resize a sample and its mask; return the sample itself if it is small enough."""
    height, width = sample.image_HWC.shape[:2]
    new = resized_size(width, height, resize)
    if new == (width, height):
        return sample
    mask = None if sample.mask_HW is None else resized_mask(sample.mask_HW, new[1], new[0])
    return Decoded(resampled(sample.image_HWC, *new, interpolation), sample.label, mask)


def most_pixels(resize: int) -> int:
    """Return the largest number of pixels of a resized image."""
    return LONGEST * resize * resize


def resized_pixels(sides_N2: Sides, resize: int) -> npt.NDArray[np.float64]:
    """Estimate the number of pixels of each resized image.

    Args:
        sides_N2: The shorter and the longer side of each image in pixels.
        resize: The shorter side that images are resized to.
    """
    shorter, longer = sides_N2.astype(np.float64).T
    scale = np.minimum(1.0, resize / np.maximum(1.0, shorter))
    pixels_N: npt.NDArray[np.float64] = np.minimum(shorter * longer * scale * scale, most_pixels(resize))
    return pixels_N
