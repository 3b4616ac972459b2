from dataclasses import replace

import numpy as np
import pytest
import torch

from mptui.data.rng import RandomStream, replacement, uniforms
from mptui.data.to_device import Finish, _by_products, colours, mix
from mptui.data.transforms import DRAWS, Geometry, Normalization, cut_image, cut_mask, views
from mptui.registry.names import SampleKind
from tests.data.samples import Drawn, Masked

CPU = torch.device("cpu")
OWN = Normalization((0.5, 0.25, 0.1), (0.3, 0.2, 0.1))
MEAN, STD = torch.tensor(OWN.mean), torch.tensor(OWN.std)
LAYOUTS = [True, False]


def pixels(count: int = 4, side: int = 6) -> torch.Tensor:
    random = np.random.default_rng(0)
    return torch.from_numpy(random.integers(0, 256, (count, side, side, 3), dtype=np.uint8))


@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_plain_pixels_are_normalised_in_the_layout_asked_for(channels_last: bool) -> None:
    found = Finish(6, CPU, OWN, channels_last=channels_last).plain(pixels())
    expected = ((pixels() / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_colours_equal_brightness_contrast_saturation_one_after_the_other(
    channels_last: bool, dtype: torch.dtype
) -> None:
    indices = np.arange(4)
    colour = torch.from_numpy(colours(7, 2, indices, OWN))
    found = Finish(6, CPU, OWN, channels_last=channels_last).coloured(pixels().to(dtype), colour)
    as_on_a_gpu = _by_products(pixels().to(dtype), colour).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, as_on_a_gpu, atol=1e-5, rtol=1e-5)
    factors = torch.from_numpy(uniforms(RandomStream.COLOUR, 7, 2, indices, count=3)).float() * 0.4 + 0.8
    brightness, contrast, saturation = factors.T[:, :, None, None, None]
    luma = torch.tensor([0.299, 0.587, 0.114])
    grey = luma @ MEAN
    x = pixels() / 255 * brightness
    x = (x - grey) * contrast + grey
    x = saturation * x + (1 - saturation) * (x @ luma)[..., None]
    torch.testing.assert_close(found, ((x - MEAN) / STD).permute(0, 3, 1, 2), atol=1e-5, rtol=1e-5)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)


def test_random_numbers_depend_on_each_part_of_the_position_and_on_nothing_else() -> None:
    base = uniforms(RandomStream.COLOUR, 1, 2, np.array([3, 4]), count=5)
    np.testing.assert_array_equal(uniforms(RandomStream.COLOUR, 1, 2, np.array([4]), count=5)[0], base[1])
    np.testing.assert_array_equal(uniforms(RandomStream.COLOUR, 1, 2, np.array([4]), count=2)[0], base[1, :2])
    others = [
        base[0],
        uniforms(RandomStream.GEOMETRY, 1, 2, np.array([4]), count=5)[0],
        uniforms(RandomStream.COLOUR, 2, 2, np.array([4]), count=5)[0],
        uniforms(RandomStream.COLOUR, 1, 3, np.array([4]), count=5)[0],
    ]
    assert not any(np.isin(other, base[1]).any() for other in others)


def test_random_numbers_are_even_and_independent() -> None:
    draws = uniforms(RandomStream.GEOMETRY, 0, 0, np.arange(20000), count=3)
    assert draws.min() >= 0
    assert draws.max() < 1
    np.testing.assert_allclose(np.histogram(draws, bins=20, range=(0, 1))[0] / draws.size, 0.05, atol=0.004)
    neighbours = np.column_stack([draws[:-1], draws[1:]])
    assert np.abs(np.corrcoef(neighbours.T) - np.eye(6)).max() < 0.03


def test_a_replacement_is_another_sample_and_never_goes_in_circles() -> None:
    assert all(replacement(0, 0, index, 0, count=5) != index for index in range(5))
    assert {replacement(0, 0, 3, attempt, count=5) for attempt in range(40)} == {0, 1, 2, 4}


@pytest.mark.parametrize("index", range(12))
def test_an_image_and_its_mask_are_cut_alike(index: int) -> None:
    sample, geometry = Masked(index).read(), Geometry.for_training(SampleKind.MASK, 64)
    assert sample.mask_HW is not None
    draws = uniforms(RandomStream.GEOMETRY, 0, 0, np.array([index]), count=DRAWS)
    boxes, flips = views(geometry, draws, np.array([128.0]), np.array([96.0]))
    image = cut_image(sample.image_HWC, boxes[0], flips[0], 64)
    mask = cut_mask(sample.mask_HW, boxes[0], flips[0], 64)
    assert ((image[:, :, 0] > 127) == (mask == 1)).mean() > 0.97


def test_classification_keeps_proportions_and_segmentation_sees_all() -> None:
    widths, heights = np.array([400.0]), np.array([200.0])
    draws = np.zeros((1, DRAWS))
    boxes, flips = views(Geometry.for_validation(SampleKind.CLASS, 64), draws, widths, heights)
    left, top, right, bottom = boxes[0]
    assert (right - left) * 400 == pytest.approx((bottom - top) * 200) == pytest.approx(200 * 224 / 256)
    assert (left + right, top + bottom) == (pytest.approx(1), pytest.approx(1))
    boxes, _ = views(Geometry.for_validation(SampleKind.MASK, 64), draws, widths, heights)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    assert not flips.any()


def test_an_image_as_small_as_the_network_sees_is_shown_whole() -> None:
    side = np.array([28.0])
    boxes, flips = views(Geometry.for_validation(SampleKind.CLASS, 28), np.zeros((1, DRAWS)), side, side)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    image = np.ascontiguousarray(Drawn(3, 28, 28).read().image_HWC)
    np.testing.assert_array_equal(cut_image(image, boxes[0], flips[0], 28), image)


@pytest.mark.parametrize(
    ("kind", "side", "least", "ratio"),
    [
        (SampleKind.CLASS, 224, 0.08, 4 / 3),
        (SampleKind.CLASS, 128, 0.08, 4 / 3),
        (SampleKind.CLASS, 127, 0.35, 4 / 3),
        (SampleKind.CLASS, 32, 0.35, 4 / 3),
        (SampleKind.MASK, 512, 0.4, 4 / 3),
    ],
)
def test_crops_have_the_shares_and_ratios_that_are_documented(
    kind: SampleKind, side: int, least: float, ratio: float
) -> None:
    """Crops are uniform in these ranges of the schema, as in torchvision's RandomResizedCrop."""
    shares, ratios, flips = crops_of(Geometry.for_training(kind, side))
    assert shares.min() == pytest.approx(least, abs=0.01)
    assert shares.max() == pytest.approx(1.0, abs=0.02)
    assert np.median(shares) == pytest.approx((least + 1) / 2, abs=0.03)
    assert ratios.min() == pytest.approx(1 / ratio, abs=0.01)
    assert ratios.max() == pytest.approx(ratio, abs=0.01)
    assert np.median(ratios) == pytest.approx(1.0, abs=0.02)
    assert flips[:, 1].mean() == pytest.approx(0.5, abs=0.05)
    assert not flips[:, [0, 2]].any()  # streets do not stand on their heads


def test_crops_have_the_shares_and_ratios_that_are_asked_for() -> None:
    geometry = Geometry.for_training(SampleKind.CLASS, 64, crop_scale=(0.1, 0.3), crop_ratio=(0.5, 0.8))
    shares, ratios, _ = crops_of(geometry)
    assert (shares.min(), shares.max()) == (pytest.approx(0.1, abs=0.01), pytest.approx(0.3, abs=0.01))
    assert (ratios.min(), ratios.max()) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.8, abs=0.01))


def crops_of(geometry: Geometry) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return area fractions, aspect ratios and flips of many crops that no border limits."""
    assert geometry.crop_scale is not None
    squares, flips = boxes_of(replace(geometry, crop_ratio=(1.0, 1.0)))
    small, _ = boxes_of(replace(geometry, crop_scale=(geometry.crop_scale[0],) * 2))
    return squares.prod(axis=1), small[:, 0] / small[:, 1], flips


def boxes_of(geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Return widths and heights of many crops as fractions, and their flips."""
    draws = uniforms(RandomStream.GEOMETRY, 0, 0, np.arange(5000), count=DRAWS)
    boxes, flips = views(geometry, draws, np.full(5000, 500.0), np.full(5000, 500.0))
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-12
    return boxes[:, 2:] - boxes[:, :2], flips


@pytest.mark.parametrize("side", [32, 224, 512])
def test_crops_of_a_quarter_of_an_image_are_not_enlarged_by_default(side: int) -> None:
    resize = Geometry.for_training(SampleKind.CLASS, side).resize
    assert resize == Geometry.for_validation(SampleKind.CLASS, side).resize == 2 * side
    assert 0.25 * resize * resize >= side * side


def test_mixup_is_a_weighted_sum_with_the_image_before() -> None:
    images = torch.rand(5, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    mixed, lam = mix(images.clone(), mixup_alpha=1.0, cutmix_alpha=0.0, position=(0, 0, 0))
    torch.testing.assert_close(mixed, lam * images + (1 - lam) * images.roll(1, 0))
    assert 0 < lam < 1
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_cutmix_tells_the_share_that_is_left_exactly() -> None:
    images = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 9, 7).clone()
    for first in range(20):
        mixed, lam = mix(images.clone(), mixup_alpha=0.0, cutmix_alpha=1.0, position=(0, 0, first))
        kept = mixed == images
        assert (kept | (mixed == images.roll(1, 0))).all()
        assert kept.float().mean().item() == pytest.approx(lam, abs=1e-6)


def test_with_both_each_batch_takes_one_by_chance() -> None:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 16, 16).clone()
    cut = [
        bool((mixed == mixed.round()).all())
        for first in range(30)
        for mixed, _ in [mix(images.clone(), mixup_alpha=1.0, cutmix_alpha=1.0, position=(0, 0, first))]
    ]
    assert 5 < sum(cut) < 25


@pytest.mark.gpu
@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_colours_on_a_gpu_are_those_of_a_host(channels_last: bool) -> None:
    colour = torch.from_numpy(colours(7, 2, np.arange(4), OWN))
    gpu = torch.device("cuda")
    found = Finish(6, gpu, OWN, channels_last=channels_last).coloured(pixels().to(gpu), colour.to(gpu))
    expected = Finish(6, CPU, OWN, channels_last=channels_last).coloured(pixels(), colour)
    torch.testing.assert_close(found.cpu(), expected, atol=0.02, rtol=0.01)  # products may be in TF32
