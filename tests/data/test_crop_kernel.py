"""The kernel that cuts views on a GPU, by Triton's interpreter."""

import importlib.util

import numpy as np
import pytest
import torch

from mptui.data import crop_kernel
from mptui.data.device_cache import Views, cut_by_products
from mptui.data.transforms import pixel_box, pixel_boxes

SIZES = np.array([(7, 5), (2, 6), (3, 3)])
STARTS = np.cumsum(SIZES.prod(axis=1)) - SIZES.prod(axis=1)


@pytest.fixture(scope="module")
def cut_views():
    """The kernel, interpreted on the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.spec_from_file_location("interpreted_crop_kernel", crop_kernel.__file__)
        assert spec is not None
        assert spec.loader is not None
        interpreted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(interpreted)
        yield interpreted.cut_views


def boxes(seed, count):
    random = np.random.default_rng(seed)
    low = random.random((count, 2)) * 0.5
    return np.concatenate([low, low + random.random((count, 2)) * (1 - low)], axis=1)


@pytest.mark.filterwarnings("ignore:invalid value")  # in lanes beyond a view, which are not stored
@pytest.mark.parametrize(
    ("bands", "dtype", "interpolation"),
    [
        (3, np.uint8, "bilinear"),
        pytest.param(2, np.uint16, "bilinear", marks=pytest.mark.slow),
        (1, np.float32, "bicubic"),
    ],
)
def test_the_kernel_cuts_what_products_cut(cut_views, bands, dtype, interpolation):
    values = np.random.default_rng(1).integers(0, 256, (int(SIZES.prod(axis=1).sum()), bands))
    pixels = torch.from_numpy((values * (1 if dtype == np.uint8 else 250)).astype(dtype))
    flips = np.array([(0, 0, 1), (1, 1, 0), (1, 0, 1)], bool)
    chosen = Views(STARTS, SIZES[:, 0], SIZES[:, 1], boxes(2, len(SIZES)), flips)
    torch.set_float32_matmul_precision("high")  # the caller's
    try:
        expected, _ = cut_by_products(pixels, None, chosen, 3, interpolation=interpolation)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    found = cut_views(pixels, chosen.crops(pixels.device), 3, cubic=interpolation == "bicubic")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_cubic_values_stay_those_of_pixels(cut_views):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (35, 1), np.uint8) * 255)
    chosen = Views(
        STARTS[:1], SIZES[:1, 0], SIZES[:1, 1], np.array([[0.0, 0.0, 1.0, 1.0]]), np.zeros((1, 3), bool)
    )
    found = cut_views(pixels, chosen.crops(pixels.device), 8, cubic=True)
    assert (found.min(), found.max()) == (0, 255)


def test_boxes_in_pixels_are_those_of_each_box():
    fractions, sizes = boxes(3, 500), np.random.default_rng(4).integers(1, 40, (500, 2))
    fractions[::7] = 1.0
    expected = [pixel_box(box, *size) for box, size in zip(fractions, sizes.tolist(), strict=True)]
    assert pixel_boxes(fractions, *sizes.T).tolist() == [list(box) for box in expected]
