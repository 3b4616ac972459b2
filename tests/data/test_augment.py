import numpy as np
import pytest
import torch

from mptui.data.augment import IMAGENET_MEAN, IMAGENET_STD, Finish, _by_products, colours, mix
from mptui.data.geometry import DRAWS, Geometry, cut_image, cut_mask, views
from mptui.data.resident import _grid, affine, crop
from mptui.data.seeds import Stream, replacement, uniforms
from tests.data.samples import Drawn, Masked

CPU = torch.device("cpu")
MEAN, STD = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
LAYOUTS = [True, False]


def pixels(count: int = 4, side: int = 6) -> torch.Tensor:
    random = np.random.default_rng(0)
    return torch.from_numpy(random.integers(0, 256, (count, side, side, 3), dtype=np.uint8))


@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_plain_pixels_are_normalised_in_the_layout_asked_for(channels_last: bool) -> None:
    found = Finish(6, CPU, channels_last=channels_last).plain(pixels())
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
    colour = torch.from_numpy(colours(7, 2, indices))
    found = Finish(6, CPU, channels_last=channels_last).coloured(pixels().to(dtype), colour)
    as_on_a_gpu = _by_products(pixels().to(dtype), colour).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, as_on_a_gpu, atol=1e-5, rtol=1e-5)
    factors = torch.from_numpy(uniforms(Stream.COLOUR, 7, 2, indices, 3)).float() * 0.4 + 0.8
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
    base = uniforms(Stream.COLOUR, 1, 2, np.array([3, 4]), 5)
    np.testing.assert_array_equal(uniforms(Stream.COLOUR, 1, 2, np.array([4]), 5)[0], base[1])
    np.testing.assert_array_equal(uniforms(Stream.COLOUR, 1, 2, np.array([4]), 2)[0], base[1, :2])
    others = [
        base[0],
        uniforms(Stream.GEOMETRY, 1, 2, np.array([4]), 5)[0],
        uniforms(Stream.COLOUR, 2, 2, np.array([4]), 5)[0],
        uniforms(Stream.COLOUR, 1, 3, np.array([4]), 5)[0],
    ]
    assert not any(np.isin(other, base[1]).any() for other in others)


def test_random_numbers_are_even_and_independent() -> None:
    draws = uniforms(Stream.GEOMETRY, 0, 0, np.arange(20000), 3)
    assert draws.min() >= 0
    assert draws.max() < 1
    np.testing.assert_allclose(np.histogram(draws, bins=20, range=(0, 1))[0] / draws.size, 0.05, atol=0.004)
    neighbours = np.column_stack([draws[:-1], draws[1:]])
    assert np.abs(np.corrcoef(neighbours.T) - np.eye(6)).max() < 0.03


def test_a_replacement_is_another_sample_and_never_goes_in_circles() -> None:
    assert all(replacement(0, 0, index, 0, 5) != index for index in range(5))
    assert {replacement(0, 0, 3, attempt, 5) for attempt in range(40)} == {0, 1, 2, 4}


@pytest.mark.parametrize("index", range(12))
def test_an_image_and_its_mask_are_cut_alike(index: int) -> None:
    sample, geometry = Masked(index).read(), Geometry.for_training("segmentation", 64)
    assert sample.mask_HW is not None
    draws = uniforms(Stream.GEOMETRY, 0, 0, np.array([index]), DRAWS)
    boxes, flips = views(geometry, draws, np.array([128.0]), np.array([96.0]))
    image = cut_image(sample.image_HW3, boxes[0], flips[0], 64)
    mask = cut_mask(sample.mask_HW, boxes[0], flips[0], 64)
    assert ((image[:, :, 0] > 127) == (mask == 1)).mean() > 0.97


def test_crops_on_the_device_show_what_crops_in_a_worker_show() -> None:
    """The same random numbers give the same view, image and mask, all eight turns included."""
    geometry = Geometry.for_training("segmentation", 64)
    indices = np.arange(24)
    samples = [Masked(int(index)).read() for index in indices]
    squares = [sample.image_HW3[:, 16:112] for sample in samples]
    masks = [sample.mask_HW[:, 16:112] for sample in samples if sample.mask_HW is not None]
    theta = torch.from_numpy(affine(geometry, 5, 1, indices))
    images, cut_masks = crop(
        torch.from_numpy(np.stack(squares)), torch.from_numpy(np.stack(masks)), theta, geometry.side
    )
    side = np.full(24, 96.0)
    boxes, flips = views(geometry, uniforms(Stream.GEOMETRY, 5, 1, indices, DRAWS), side, side)
    assert len(np.unique(flips, axis=0)) == 8
    for row in range(24):
        mask = cut_mask(masks[row], boxes[row], flips[row], 64)
        image = cut_image(np.ascontiguousarray(squares[row]), boxes[row], flips[row], 64)
        assert (mask == cut_masks[row].numpy()).mean() > 0.98  # a worker cuts at whole pixels
        assert ((image[:, :, 0] > 127) == (images[row, :, :, 0].numpy() > 127)).mean() > 0.97


def test_classification_keeps_proportions_and_segmentation_sees_all() -> None:
    widths, heights = np.array([400.0]), np.array([200.0])
    draws = np.zeros((1, DRAWS))
    boxes, flips = views(Geometry.for_validation("classification", 64), draws, widths, heights)
    left, top, right, bottom = boxes[0]
    assert (right - left) * 400 == pytest.approx((bottom - top) * 200) == pytest.approx(200 * 224 / 256)
    assert (left + right, top + bottom) == (pytest.approx(1), pytest.approx(1))
    boxes, _ = views(Geometry.for_validation("segmentation", 64), draws, widths, heights)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    assert not flips.any()


def test_an_image_as_small_as_the_network_sees_is_shown_whole() -> None:
    side = np.array([28.0])
    boxes, flips = views(Geometry.for_validation("classification", 28), np.zeros((1, DRAWS)), side, side)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    image = np.ascontiguousarray(Drawn(3, 28, 28).read().image_HW3)
    np.testing.assert_array_equal(cut_image(image, boxes[0], flips[0], 28), image)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_training_crops_stay_inside_and_a_hinted_decode_never_enlarges_them(task: str) -> None:
    geometry = Geometry.for_training(task, 128)
    draws = uniforms(Stream.GEOMETRY, 0, 0, np.arange(500), DRAWS)
    boxes, flips = views(geometry, draws, np.full(500, 640.0), np.full(500, 480.0))
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-12
    hints = np.array([geometry.side_hint(draw) for draw in draws])
    shortest = np.minimum((boxes[:, 2] - boxes[:, 0]) * 4 / 3, boxes[:, 3] - boxes[:, 1]) * hints
    inside = (boxes[:, 2] - boxes[:, 0] < 1) & (boxes[:, 3] - boxes[:, 1] < 1)
    assert inside.mean() > 0.5
    assert shortest[inside].min() >= 128 - 1e-6
    assert flips[:, 1].mean() == pytest.approx(0.5, abs=0.1)
    assert flips[:, [0, 2]].any() == (task == "segmentation")


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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_colours_on_a_gpu_are_those_of_a_host(channels_last: bool) -> None:
    colour = torch.from_numpy(colours(7, 2, np.arange(4)))
    gpu = torch.device("cuda")
    found = Finish(6, gpu, channels_last=channels_last).coloured(pixels().to(gpu), colour.to(gpu))
    expected = Finish(6, CPU, channels_last=channels_last).coloured(pixels(), colour)
    torch.testing.assert_close(found.cpu(), expected, atol=0.02, rtol=0.01)  # products may be in TF32


def test_views_are_cut_where_affine_grid_says_without_a_product_of_matrices() -> None:
    theta = torch.from_numpy(affine(Geometry.for_training("segmentation", 48), 3, 1, np.arange(6)))
    expected = torch.nn.functional.affine_grid(theta, [6, 1, 48, 48], align_corners=False)
    torch.testing.assert_close(_grid(theta, 48), expected, atol=1e-6, rtol=0)
