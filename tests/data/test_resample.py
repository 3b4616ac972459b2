from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from mptui.data.decode import FileRequest
from mptui.data.masks import MaskCoding, MaskedFileRequest
from mptui.data.transforms import DRAWS, Geometry, cut_image, cut_mask, resampled, views
from mptui.data.types import Mask, Pixels
from mptui.registry.names import SampleKind
from tests.data.images import difference, natural

from .images import save_oriented

MEAN_TOLERANCE, MAX_TOLERANCE = 2.0, 24
"""Tolerances, of 255, against Pillow's bilinear resize; over many photos the mean is 0.3."""
WHOLE_TOLERANCE = 5.0
"""Tolerance for JPEGs decoded at reduced size: libjpeg halves more sharply than Pillow's filter."""


def pillow(image: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


SCALES = (0.5, 0.83, 1.0, 1.04, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0, 3.7, 4.1, 5.9, 9.0)
SHAPES = (1.0, 0.75, 1.6)


@pytest.mark.parametrize(
    ("scale", "shape"),
    [
        pytest.param(scale, shape, marks=[pytest.mark.slow] * (number % 3 != place))
        for number, scale in enumerate(SCALES)
        for place, shape in enumerate(SHAPES)
    ],
)
def test_pixels_are_within_a_tolerance_of_pillows(scale: float, shape: float) -> None:
    side = 96
    image = natural(round(side * scale * shape), round(side * scale), seed=int(scale * 10))
    mean, most = difference(resampled(image, side, side), pillow(image, side, side))
    assert mean < MEAN_TOLERANCE
    assert most <= MAX_TOLERANCE


@pytest.mark.parametrize(
    "index", [0, *(pytest.param(index, marks=pytest.mark.slow) for index in range(1, 6))]
)
def test_a_view_of_a_jpeg_is_within_a_tolerance_of_pillows(tmp_path: Path, index: int) -> None:
    """JPEGs decoded at a half or a quarter if the crop allows, as Pillow does with `draft`."""
    path = str(tmp_path / "a.jpg")
    Image.fromarray(natural(1000, 752, seed=index)).save(path, quality=90, subsampling=index % 3)
    geometry = Geometry.for_training(SampleKind.CLASS, 128)
    decoded_at, compared_with_whole = set(), 0
    for hint, row in zip(
        (128, 300, 400, 700) * 2, np.random.default_rng(index).random((8, DRAWS)), strict=True
    ):
        image = FileRequest(path, 0).read(hint).image_HWC
        height, width = image.shape[:2]
        decoded_at.add(width)
        boxes, flips = views(geometry, row[None], np.array([float(width)]), np.array([float(height)]))
        found = cut_image(image, boxes[0], flips[0], 128)
        box = np.rint(boxes[0] * (width, height, width, height)) / (width, height, width, height)
        with Image.open(path) as small, Image.open(path) as whole:
            small.draft(None, (hint, hint))
            pictures = [(small, MEAN_TOLERANCE)]
            if min((box[2] - box[0]) * width, (box[3] - box[1]) * height) >= 128:
                pictures.append((whole, WHOLE_TOLERANCE))  # the smaller image contains the whole crop
                compared_with_whole += 1
            for picture, tolerance in pictures:
                cropped = picture.crop(tuple(np.rint(box * (picture.size * 2)).astype(int).tolist()))
                expected = cropped.resize((128, 128), Image.Resampling.BILINEAR)
                if flips[0, 1]:
                    expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                mean, most = difference(found, np.asarray(expected))
                assert mean < tolerance
                assert most <= tolerance * 12
    assert len(decoded_at) > 1
    assert compared_with_whole


def test_the_same_size_and_a_flat_image_stay_as_they_are() -> None:
    image = natural(64, 48)
    np.testing.assert_array_equal(resampled(image, 64, 48), image)
    for value in (0, 1, 127, 254, 255):
        for size in ((65, 64), (90, 75), (128, 128), (200, 333), (640, 300)):
            flat = np.full((*size, 3), value, np.uint8)
            assert (resampled(flat, 64, 64) == value).all()


def test_what_the_smaller_image_cannot_hold_is_smoothed_away() -> None:
    """A fine chequered pattern becomes grey, without aliasing."""
    chequered = (np.indices((300, 300)).sum(0) % 2 * 255).astype(np.uint8)
    image = np.repeat(chequered[..., None], 3, axis=2)
    for side in (150, 137, 100, 70, 50):
        small = resampled(image, side, side)[2:-2, 2:-2].astype(float)
        reference = pillow(image, side, side)[2:-2, 2:-2].astype(float)
        assert small.mean() == pytest.approx(127.5, abs=2)
        assert small.std() < max(8.0, 1.5 * reference.std())


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (3, 2000), (2, 2)])
def test_the_narrowest_images_can_be_cut(size: tuple[int, int]) -> None:
    image, mask = np.full((*size, 3), 200, np.uint8), np.ones(size, np.int16)
    for kind in (SampleKind.CLASS, SampleKind.MASK):
        geometry = Geometry.for_training(kind, 32)
        draws = np.random.default_rng(0).random((20, DRAWS))
        for row in draws:
            boxes, flips = views(geometry, row[None], np.array([float(size[1])]), np.array([float(size[0])]))
            assert (cut_image(image, boxes[0], flips[0], 32) == 200).all()
            assert (cut_mask(mask, boxes[0], flips[0], 32) == 1).all()


def quadrants(width: int, height: int) -> tuple[Pixels, Mask]:
    """Return an image of four different areas, with off-centre edges, and their mask."""
    mask = np.zeros((height, width), np.int16)
    mask[:, int(width * 0.42) :] += 1
    mask[int(height * 0.57) :] += 2
    colours = np.array([[10, 10, 10], [240, 10, 10], [10, 240, 10], [10, 10, 240]], np.uint8)
    return colours[mask], mask


def read_back(image: Pixels) -> Mask:
    """Return the area that each pixel of a crop shows."""
    lit = image.astype(int).max(axis=2) > 125
    return np.where(lit, image.argmax(axis=2) + 1, 0).astype(np.int16)


def off_edges(mask: Mask, reach: int) -> npt.NDArray[np.bool_]:
    """Return the pixels whose neighbours within `reach` all have the same class."""
    inner = np.ones(mask.shape, bool)
    for shift in range(1, reach + 1):
        for axis in (0, 1):
            for way in (shift, -shift):
                inner &= mask == np.roll(mask, way, axis)
    return inner


@pytest.mark.parametrize(
    "size", [(70, 50), (200, 301), (640, 480), pytest.param((1501, 777), marks=pytest.mark.slow)]
)
def test_a_mask_is_cut_to_the_pixel_of_its_image(size: tuple[int, int]) -> None:
    image, mask = quadrants(*size)
    geometry = Geometry.for_training(SampleKind.MASK, 64)
    seen = 0
    for row in np.random.default_rng(1).random((40, DRAWS)):
        boxes, flips = views(geometry, row[None], np.array([float(size[0])]), np.array([float(size[1])]))
        shown = read_back(cut_image(image, boxes[0], flips[0], 64))
        told = cut_mask(mask, boxes[0], flips[0], 64)
        inner = off_edges(told, 1)
        assert (shown == told)[inner].all()
        seen += len(np.unique(told)) == 4
    assert seen > 20


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("hint", [None, 64])
def test_a_jpeg_decoded_smaller_keeps_its_mask(tmp_path: Path, orientation: int, hint: int | None) -> None:
    image, mask = quadrants(601, 450)
    save_oriented(tmp_path / "a.jpg", orientation, Image.fromarray(image))
    Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "a.png")  # drawn over the upright image
    if orientation in {2, 3, 4}:  # same shape as the stored image: masks are drawn over that
        save_oriented(tmp_path / "a.png", orientation, Image.fromarray(mask.astype(np.uint8)))
        Image.open(tmp_path / "a.png").convert("L").save(tmp_path / "b.png")
        stored = Image.fromarray(np.asarray(Image.open(tmp_path / "b.png")))
        stored.save(tmp_path / "a.png")
    coding = MaskCoding(("a", "b", "c", "d"), (0, 1, 2, 3), (0, 1, 2, 3))
    sample = MaskedFileRequest(str(tmp_path / "a.jpg"), str(tmp_path / "a.png"), coding).read(hint)
    assert sample.mask_HW is not None
    assert sample.mask_HW.shape == sample.image_HWC.shape[:2] == ((450, 601) if hint is None else (113, 151))
    for row in np.random.default_rng(2).random((10, DRAWS)):
        height, width = sample.mask_HW.shape
        geometry = Geometry.for_training(SampleKind.MASK, 64)
        boxes, flips = views(geometry, row[None], np.array([float(width)]), np.array([float(height)]))
        shown = read_back(cut_image(sample.image_HWC, boxes[0], flips[0], 64))
        told = cut_mask(sample.mask_HW, boxes[0], flips[0], 64)
        inner = off_edges(told, 2)
        assert (shown == told)[inner].all()
