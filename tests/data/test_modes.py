"""The cache mode doesn't change training."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.data.decode import FileRequest
from mptui.data.device_cache import Views, WholeImages, cut, cut_by_products
from mptui.data.transforms import DRAWS, Geometry, pixel_box, resized_size, views
from mptui.data.types import Decoded
from mptui.registry.names import Interpolation, SampleKind
from tests.data.images import natural, pairs, save_oriented
from tests.data.loaders import loader
from tests.data.modes import (
    EXACT,
    TOLERANCES,
    as_on_a_gpu,
    batches_of,
    open_split,
    outside_and_sharpness,
    wide,
)
from tests.data.samples import Samples

SIZES = [(420, 210), (150, 300), (130, 97), (97, 130), (640, 100), (90, 90), (30, 22), (500, 375)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of many shapes, smaller and larger than their resized form, with all orientations."""
    root = tmp_path_factory.mktemp("mixed")
    for index in range(16):
        folder = root / "ab"[index % 2]
        folder.mkdir(exist_ok=True)
        picture = Image.fromarray(natural(*SIZES[index % len(SIZES)], seed=index))
        save_oriented(folder / f"{index:02}.jpg", index % 8 + 1, picture)
    return root


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    coarse = [random.integers(0, 3, (6, 9), np.uint8) for _ in range(12)]
    masks = [
        np.asarray(Image.fromarray(each).resize((270, 180), Image.Resampling.NEAREST)) for each in coarse
    ]
    root = tmp_path_factory.mktemp("masked")
    pairs(root, masks, size=(270, 180))
    return root


@pytest.fixture(scope="module")
def wide_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wide")
    for index in range(16):
        folder = root / "ab"[index % 2]
        folder.mkdir(exist_ok=True)
        picture = Image.fromarray(wide(600, 300, index))
        picture.save(folder / f"{index}.jpg", quality=97, subsampling=0)
    return root


ViewsOf = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def off(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found - expected).abs().mean(dim=(1, 2, 3))


@pytest.fixture(scope="module")
def views_of(tmp_path_factory: pytest.TempPathFactory) -> ViewsOf:
    """Returns the views of a folder in a mode, which are made once for all tests; not to be changed."""
    made = tmp_path_factory.mktemp("made")

    @cache
    def views(folder: Path, mode: str, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if mode == "device, as on a GPU":
            with as_on_a_gpu():
                return batches_of(folder, mode, made, **settings)
        return batches_of(folder, mode, made, **settings)

    return views


@pytest.mark.parametrize("mode", TOLERANCES)
@pytest.mark.parametrize("side", [32, 130])
def test_the_views_of_a_seed_are_the_same_in_every_mode(
    mixed: Path, views_of: ViewsOf, mode: str, side: int
) -> None:
    settings = {"kind": SampleKind.CLASS, "side": side, "epochs": 2}
    expected, labels = views_of(mixed, "off", **settings)
    found, found_labels = views_of(mixed, mode, **settings)
    assert torch.equal(found_labels, labels)
    if mode in EXACT:
        assert torch.equal(found, expected)
    else:
        assert off(found, expected).max() < TOLERANCES[mode] * 3
        assert off(found, expected).mean() < TOLERANCES[mode]


@pytest.mark.parametrize("mode", TOLERANCES)
def test_masks_and_their_images_are_the_same_in_every_mode(
    masked: Path, views_of: ViewsOf, mode: str
) -> None:
    names = ("crop", "flip", "vertical_flip", "turn", "colour")
    settings = {"kind": SampleKind.MASK, "side": 48, "epochs": 2, "names": names}
    expected, masks = views_of(masked, "off", **settings)
    found, found_masks = views_of(masked, mode, **settings)
    assert torch.equal(found_masks, masks)
    assert off(found, expected).mean() <= TOLERANCES[mode]


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("settings", [{"train": False}, {"augment": False}], ids=str)
def test_fixed_views_are_the_same_in_every_mode(
    mixed: Path, views_of: ViewsOf, mode: str, settings: dict[str, bool]
) -> None:
    asked = {"kind": SampleKind.CLASS, "side": 40, "epochs": 1, **settings}
    assert torch.equal(views_of(mixed, mode, **asked)[0], views_of(mixed, "off", **asked)[0])


@pytest.mark.slow
def test_crops_and_pixels_are_distributed_alike_in_every_mode(wide_photos: Path, views_of: ViewsOf) -> None:
    """For images twice as wide as high: how often crops show the outer quarters, and their sharpness."""
    figures = {
        mode: outside_and_sharpness(views_of(wide_photos, mode, kind=SampleKind.CLASS, side=128, epochs=2)[0])
        for mode in ("off", *TOLERANCES)
    }
    outside, sharpness = figures["off"]
    assert outside > 0.85
    for mode, (share, sharp) in figures.items():
        assert share == pytest.approx(outside, abs=0.02), mode
        assert sharp == pytest.approx(sharpness, rel=0.05), mode  # prepared JPEGs are 3 % less sharp


@pytest.mark.parametrize(
    "mode", ["off", "ram", "device", pytest.param("device, as on a GPU", marks=pytest.mark.slow)]
)
def test_the_resolution_that_is_kept_is_a_setting_in_every_mode(
    wide_photos: Path, views_of: ViewsOf, mode: str
) -> None:
    settings = {"kind": SampleKind.CLASS, "side": 64, "epochs": 2}
    whole = outside_and_sharpness(views_of(wide_photos, mode, resize=300, **settings)[0])[1]
    small = outside_and_sharpness(views_of(wide_photos, mode, resize=74, **settings)[0])[1]
    assert small < 0.8 * whole
    tiny_crops = {"crop_scale": (0.02, 0.05), "crop_ratio": (1.0, 1.0)}
    narrow = outside_and_sharpness(views_of(wide_photos, mode, **tiny_crops, **settings)[0])[0]
    assert 0.4 < narrow < 0.85  # most crops lie inside one half


@pytest.mark.slow
def test_what_lies_beyond_the_middle_is_learnt_in_every_mode(tmp_path: Path, views_of: ViewsOf) -> None:
    """Two classes of photos that differ only at their ends: the same accuracy, well above chance."""
    root = tmp_path / "ends"
    for index in range(40):
        image = natural(300, 150, seed=index).astype(int)
        for end in (image[:, :75], image[:, 225:]):
            end[:, :, 2 * (index % 2)] += 60
        (root / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image.clip(0, 255).astype(np.uint8))
        picture.save(root / "ab"[index % 2] / f"{index:02}.jpg", quality=90)
    found = {}
    for mode in ("off", *TOLERANCES):
        images, labels = views_of(root, mode, kind=SampleKind.CLASS, side=24, epochs=4)
        found[mode] = accuracy(images, labels, len(images) // 4)
    assert found["off"] > 0.8
    for mode, share in found.items():
        assert share == pytest.approx(found["off"], abs=0.05), mode
    middle = [torch.from_numpy(natural(300, 150, seed=index)[:, 75:225].copy()) for index in range(40)]
    images = torch.stack(middle).permute(0, 3, 1, 2).float()
    assert accuracy(images, torch.arange(40) % 2, 40) < 0.75  # negative control


def accuracy(images: torch.Tensor, labels: torch.Tensor, photos: int) -> float:
    """Train a linear network on area mean colours of two thirds of the photos; return test accuracy."""
    features = torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) / 128 - 1
    features = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    seen = torch.arange(len(features)) % photos % 3 < 2
    ridge = features[seen].T @ features[seen] + torch.eye(features.shape[1])
    weights = torch.linalg.solve(ridge, features[seen].T @ (labels[seen] * 2.0 - 1.0))
    right = (features[~seen] @ weights > 0) == labels[~seen].bool()
    return float(right.float().mean())


def test_a_bicubic_crop_of_black_and_white_stays_between_them() -> None:
    """The kernel overshoots: without clipping, values would lie beyond those of pixels."""
    pixels = np.random.default_rng(0).integers(0, 2, (90 * 60, 3), np.uint8) * 255
    starts, widths, heights = np.array([0]), np.array([90]), np.array([60])
    chosen = Views(starts, widths, heights, np.array([[0.0, 0.0, 1.0, 1.0]]), np.zeros((1, 3), bool))
    (found,), _ = cut_by_products(torch.from_numpy(pixels), None, chosen, 48, interpolation="bicubic")
    assert (found.min(), found.max()) == (0, 255)


@pytest.mark.slow
def test_a_centre_square_would_have_been_noticed() -> None:
    """Negative control: the same figures for images cropped to their middle."""

    class Middle:
        def __init__(self, index: int) -> None:
            self.index, self.name = index, f"middle-{index}"

        def read(self, side_hint: int | None = None) -> Decoded:
            return Decoded(np.ascontiguousarray(wide(600, 300, self.index)[:, 150:450]))

    with loader(Samples(24, Middle), side=64, batch_size=24) as it:
        images = torch.cat([batch.images_BCHW for window in it.windows(0, 1) for batch in window])
    assert outside_and_sharpness((images * 0.226 + 0.45) * 255)[0] < 0.05


@pytest.mark.parametrize("mode", ["off", "ram", "device"])
def test_bicubic_views_are_pillows_in_every_mode(mixed: Path, views_of: ViewsOf, mode: str) -> None:
    asked = {"kind": SampleKind.CLASS, "side": 40, "epochs": 1, "train": False}
    found, _ = views_of(mixed, mode, resize=60, interpolation="bicubic", crop_pct=0.8, **asked)
    split = open_split(mixed, SampleKind.CLASS)
    files = [request.name for request in map(split.request, range(len(split)))]
    assert len(files) == len(found)
    for path, view in zip(files, found, strict=True):
        image = FileRequest(path, 0).read(60).image_HWC
        height, width = image.shape[:2]
        whole = Image.fromarray(image).resize(resized_size(width, height, 60), Image.Resampling.BICUBIC)
        geometry = Geometry.for_validation(SampleKind.CLASS, 40, 60, crop_pct=0.8)
        (box,), _ = views(geometry, np.zeros((1, DRAWS)), *np.array(whole.size, float)[:, None])
        view_of_pillow = whole.crop(pixel_box(box, *whole.size)).resize((40, 40), Image.Resampling.BICUBIC)
        assert np.abs(view.permute(1, 2, 0).numpy() - np.asarray(view_of_pillow)).max() < 0.01


@pytest.mark.parametrize("mode", ["ram", "device", "device, as on a GPU"])
def test_bicubic_views_of_a_seed_are_the_same_in_every_mode(
    mixed: Path, views_of: ViewsOf, mode: str
) -> None:
    settings = {"kind": SampleKind.CLASS, "side": 40, "epochs": 2, "interpolation": "bicubic"}
    expected, _ = views_of(mixed, "off", **settings)
    found, _ = views_of(mixed, mode, **settings)
    assert off(found, expected).max() < (0.7 if mode.endswith("GPU") else 1e-9)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_products_resize_as_pillow_does(interpolation: Interpolation) -> None:
    """Images are enlarged and reduced with the weights of Pillow's filters."""
    pillows = Image.Resampling[interpolation.upper()]
    sizes = [(200, 130), (9, 300), (2, 2), (64, 64), (333, 40)]
    pictures = [natural(width, height, seed=width) for width, height in sizes]
    if (
        interpolation == "bicubic"
    ):  # what overshoots is clipped, in an order of the dimensions of Pillow's own
        pictures = [picture // 2 + 60 for picture in pictures]
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in pictures])
    counts = np.array([width * height for width, height in sizes])
    table = np.array(sizes)
    kept = WholeImages(
        pixels_PC=torch.from_numpy(pixels),
        masks_P=None,
        labels_N=torch.zeros(len(sizes), dtype=torch.int64),
        starts_N=np.cumsum(counts) - counts,
        sizes_N2=table,
        indices=np.arange(len(sizes)),
    )
    boxes = np.tile([0.0, 0.0, 1.0, 1.0], (len(sizes), 1))
    flips = np.zeros((len(sizes), 3), bool)
    chosen = Views(kept.starts_N, table[:, 0], table[:, 1], boxes, flips)
    found, _ = cut_by_products(kept.pixels_PC, None, chosen, 48, interpolation=interpolation)
    for picture, seen in zip(pictures, found, strict=True):
        expected = Image.fromarray(picture).resize((48, 48), pillows)
        assert np.abs(seen.numpy() - np.asarray(expected, np.float32)).max() < 1.5
    for turn in np.ndindex(2, 2, 2):
        turned = Views(
            kept.starts_N, table[:, 0], table[:, 1], boxes, np.tile(np.array(turn, bool), (len(sizes), 1))
        )
        by_products, by_opencv = (
            cut_by_products(kept.pixels_PC, None, turned, 48, interpolation=interpolation)[0],
            cut(kept, turned, 48, interpolation)[0],
        )
        assert (by_products - by_opencv.float()).abs().mean() < 1.0
