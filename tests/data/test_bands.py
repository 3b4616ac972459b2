"""Images of many bands and of more than 8 bits: read, cached and copied without losing a bit."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mptui.data.dataset import FileSplit, MaskedSplit
from mptui.data.decode import FileRequest, read_stored
from mptui.data.device_cache import Views, cut_by_products
from mptui.data.loader import Loader
from mptui.data.masks import MaskCoding
from mptui.data.transforms import Normalization, flipped, resampled
from mptui.data.types import IGNORE, BadSampleError, PixelFormat, Pixels
from mptui.registry.names import SampleKind
from tests.data.images import png_of, values
from tests.gpus import DEVICES
from tests.made.loaders import built_loader

DTYPES = ("uint8", "uint16", "int16", "float32")
SIDE = 32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("bands", "how"),
    [
        (13, {"photometric": "minisblack", "planarconfig": "contig"}),
        (13, {"photometric": "minisblack", "planarconfig": "separate"}),
        (13, {"photometric": "minisblack", "planarconfig": "contig", "byteorder": ">", "bigtiff": True}),
        (
            5,
            {
                "photometric": "minisblack",
                "compression": "deflate",
                "tile": (16, 16),
                "planarconfig": "contig",
            },
        ),
        (13, {}),  # the rows become pages
        (4, {"photometric": "rgb"}),
        (1, {}),
    ],
)
def test_a_tiff_is_read_to_the_bit(tmp_path: Path, dtype: str, bands: int, how: dict[str, Any]) -> None:
    pixels = values(dtype, 20, 30, bands)
    stored = pixels.transpose(2, 0, 1) if how.get("planarconfig") == "separate" else pixels
    tifffile.imwrite(tmp_path / "a.tif", stored[..., 0] if bands == 1 else stored, **how)
    found = read_stored(str(tmp_path / "a.tif"), PixelFormat(bands, dtype))
    assert (found.size, found.format) == ((30, 20), PixelFormat(bands, dtype))
    assert found.pixels_HWC.tobytes() == np.ascontiguousarray(pixels).tobytes()


def test_the_pages_of_a_tiff_are_its_bands(tmp_path: Path) -> None:
    bands = values("uint16", 7, 20, 30)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for band in bands:
            file.write(band, metadata=None, contiguous=False)
    assert np.array_equal(read_stored(str(tmp_path / "a.tif")).pixels_HWC, bands.transpose(1, 2, 0))


@pytest.mark.parametrize(("colour_type", "bands"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_a_png_of_16_bits_is_read_to_the_bit(tmp_path: Path, colour_type: int, bands: int) -> None:
    pixels = values("uint16", 20, 30, bands)
    (tmp_path / "a.png").write_bytes(png_of(pixels, colour_type))
    found = read_stored(str(tmp_path / "a.png")).pixels_HWC
    assert found.dtype == np.uint16
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_the_bands_of_8_bits_are_those_of_the_file(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(values("uint8", 9, 12, 4), "RGBA").convert(mode)
    image.save(tmp_path / "a.png")
    assert np.array_equal(read_stored(str(tmp_path / "a.png")).pixels_HWC, np.array(image).reshape(9, 12, -1))


def test_an_orientation_is_applied(tmp_path: Path) -> None:
    pixels = values("uint16", 20, 30, 5)
    how: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(tmp_path / "a.tif", pixels, extratags=[(274, 3, 1, 6, True)], **how)
    found = read_stored(str(tmp_path / "a.tif"))
    assert found.orientation == 6
    assert np.array_equal(found.pixels_HWC, np.rot90(pixels, -1))


def test_values_that_are_not_finite_are_zero(tmp_path: Path) -> None:
    pixels = values("float32", 8, 8, 1)
    pixels[0, :2, 0] = np.nan, np.inf
    tifffile.imwrite(tmp_path / "a.tif", pixels[..., 0])
    found = read_stored(str(tmp_path / "a.tif"))
    assert not found.finite
    assert found.pixels_HWC[0, :2].ravel().tolist() == [0, 0]
    assert np.array_equal(found.pixels_HWC[1:], pixels[1:])


@pytest.mark.skipif(find_spec("imagecodecs") is not None, reason="imagecodecs is installed")
def test_a_compression_that_needs_more_names_what_to_install(tmp_path: Path) -> None:
    Image.fromarray(values("uint16", 8, 8)).save(tmp_path / "a.tif", compression="tiff_lzw")
    with pytest.raises(BadSampleError, match=r"compressed by LZW: pip install 'mptui\[tiff\]' to read it"):
        read_stored(str(tmp_path / "a.tif"))


def test_what_cant_be_read_exactly_is_a_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"

    def reason() -> str:
        with pytest.raises(BadSampleError) as error:
            read_stored(str(path), PixelFormat(5, "uint16"))
        return error.value.reason

    how: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(path, values("uint16", 40, 40, 5), **how)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert reason() == "truncated: the end of the file is missing"
    tifffile.imwrite(path, values("uint16", 8, 8, 6), **how)
    assert reason() == "6 bands of uint16, but the other images have 5 bands of uint16"
    tifffile.imwrite(path, values("float32", 8, 8, 5).astype(np.float64), **how)
    assert reason() == "values of float64: only uint8, uint16, int16, float32 are read"
    content = png_of(values("uint16", 30, 30, 3), 2)
    path.write_bytes(content[:-300])
    assert reason() == "truncated: the end of the file is missing"
    path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    assert reason() == "damaged (wrong checksum)"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bands", [1, 2, 3, 4, 5, 13, 130])
def test_bands_are_resampled_and_flipped_alike(bands: int, dtype: str) -> None:
    pixels = values(dtype, 60, 90, bands)
    for size in ((90, 60), (40, 31), (12, 10), (120, 77)):
        found = resampled(pixels, *size)
        assert (found.shape, found.dtype) == ((size[1], size[0], bands), pixels.dtype)
        alone = resampled(np.ascontiguousarray(pixels[..., -1:]), *size)
        np.testing.assert_allclose(found[..., -1:].astype(float), alone.astype(float), rtol=1e-5, atol=1)
    assert np.array_equal(resampled(pixels, 90, 60), pixels)
    for turned in np.ndindex(2, 2, 2):
        expected = pixels.transpose(1, 0, 2) if turned[0] else pixels
        expected = expected[:: -1 if turned[2] else 1, :: -1 if turned[1] else 1]
        flips = {"transposed": bool(turned[0]), "mirrored_x": bool(turned[1]), "mirrored_y": bool(turned[2])}
        assert np.array_equal(flipped(pixels, **flips), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bands", [1, 2, 4, 13])
def test_bicubic_bands_of_every_type_are_pillows(bands: int, dtype: str) -> None:
    pixels = values(dtype, 60, 90, bands)
    for size in ((40, 31), (120, 77)):
        found = resampled(pixels, *size, "bicubic")
        assert (found.shape, found.dtype) == ((size[1], size[0], bands), pixels.dtype)
        last = Image.fromarray(pixels[..., -1].astype("uint8" if dtype == "uint8" else "float32"))
        expected = np.asarray(last.resize(size, Image.Resampling.BICUBIC))
        if dtype != "float32":
            expected = expected.clip(np.iinfo(dtype).min, np.iinfo(dtype).max)
        np.testing.assert_allclose(found[..., -1].astype(float), expected.astype(float), atol=0.5)
    assert np.array_equal(resampled(pixels, 90, 60, "bicubic"), pixels)


@dataclass(frozen=True)
class Stored:
    """A folder of stored images with masks, and their values."""

    pixels: Pixels
    mask_values: Pixels
    classes: FileSplit
    masks: MaskedSplit


def stored_images(folder: Path, form: PixelFormat, count: int = 13) -> Stored:
    pixels = values(form.dtype, count, SIDE, SIDE, form.bands)
    masks = values("uint8", count, SIDE, SIDE, seed=1) % 3
    paths, mask_paths = [], []
    for index in range(count):
        paths.append(str(folder / f"{index}.tif"))
        mask_paths.append(str(folder / f"{index}.png"))
        tifffile.imwrite(paths[-1], pixels[index].transpose(2, 0, 1).squeeze(), photometric="minisblack")
        Image.fromarray(masks[index]).save(mask_paths[-1])
    rows = np.arange(count)
    coding = MaskCoding(("a", "b"), (0, 1, 2), (0, 1, IGNORE))
    return Stored(
        pixels,
        np.where(masks == 2, IGNORE, masks.astype(np.int16)),
        FileSplit(paths, rows % 3, rows, form),
        MaskedSplit(paths, mask_paths, coding, rows, form),
    )


def loader(split: Any, form: PixelFormat, **settings: Any) -> Loader:
    unchanged = Normalization((0.0,) * form.bands, (1 / 255 if form.dtype == "uint8" else 1.0,) * form.bands)
    chosen: dict[str, Any] = {
        "kind": SampleKind.CLASS, "pixels": form, "batch_size": 4, "side": SIDE, "num_classes": 3,
        "device": torch.device("cpu"), "train": False, "augment": False, "seed": 3,
        "normalization": unchanged,
    }  # fmt: skip
    return built_loader(split, **{**chosen, **settings})


@pytest.mark.parametrize("channels_last", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cache", ["off", "ram", "device"])
@pytest.mark.parametrize(
    "form", [PixelFormat(13, "uint16"), PixelFormat(3, "float32"), PixelFormat(1, "uint8")]
)
def test_the_bits_of_a_file_reach_the_device(
    tmp_path: Path, form: PixelFormat, cache: str, channels_last: bool
) -> None:
    data = stored_images(tmp_path, form)
    workers = 2 if channels_last and form.bands == 13 else 0
    how: dict[str, Any] = {"cache": cache, "workers": workers, "channels_last": channels_last}
    expected = torch.from_numpy(data.pixels.astype(np.float32)).permute(0, 3, 1, 2)
    for split, kind in ((data.classes, SampleKind.CLASS), (data.masks, SampleKind.MASK)):
        with loader(split, form, kind=kind, **how) as chosen:
            for epoch in (0, 1):
                batches = [batch for window in chosen.windows(epoch, 1) for batch in window]
                assert torch.equal(torch.cat([batch.images_BCHW for batch in batches]), expected)
                if kind is SampleKind.MASK:
                    masks = torch.cat([batch.targets for batch in batches])
                    assert np.array_equal(masks.numpy(), data.mask_values)


@pytest.mark.parametrize(
    "form", [pytest.param(PixelFormat(5, "uint16"), marks=pytest.mark.slow), PixelFormat(2, "float32")]
)
def test_random_views_are_the_same_with_any_cache(tmp_path: Path, form: PixelFormat) -> None:
    data = stored_images(tmp_path, form)

    def images(cache: str, start: int = 0, **more: Any) -> torch.Tensor:
        how: dict[str, Any] = {"train": True, "augment": True, "cache": cache, "side": 20, **more}
        with loader(data.classes, form, **how) as chosen:
            windows = (window for epoch in (0, 1) for window in chosen.windows(epoch, 1, start))
            return torch.cat([batch.images_BCHW for window in windows for batch in window])

    plain = images("off")
    assert plain.std() > 0.1 * values(form.dtype, 1000).astype(float).std()
    assert torch.equal(images("ram"), plain)
    assert torch.equal(images("device"), plain)
    assert torch.equal(images("off", workers=2), plain)
    resumed = images("off", start=8)
    half = len(plain) // 2
    assert torch.equal(resumed, torch.cat([plain[8:half], plain[half + 8 :]]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_of_a_whole_image_has_its_bits(dtype: str, device: str) -> None:
    """Products, which cut views on a GPU, are exact where nothing is resized, even if TF32 is on."""
    pixels = values(dtype, 6, SIDE, SIDE, 13)
    stored_PC = torch.from_numpy(pixels.reshape(-1, 13)).to(device)
    sides, boxes = np.full(6, SIDE), np.tile([0.0, 0.0, 1.0, 1.0], (6, 1))
    chosen = Views(np.arange(6) * SIDE * SIDE, sides, sides, boxes, np.zeros((6, 3), bool))
    torch.set_float32_matmul_precision("high")
    try:
        found, _ = cut_by_products(stored_PC, None, chosen, SIDE)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert np.array_equal(found.cpu().numpy(), pixels.astype(np.float32))


def test_a_file_of_another_format_is_a_bad_sample(tmp_path: Path) -> None:
    form = PixelFormat(5, "uint16")
    data = stored_images(tmp_path, form)
    tifffile.imwrite(data.classes.paths[2], values("uint16", SIDE, SIDE, 4), photometric="rgb")
    with loader(data.classes, form, bad_budget=0.2) as chosen:
        assert sum(batch.size for window in chosen.windows(0, 1) for batch in window) == 13
        assert [problem.reason for problem in chosen.bad] == [
            "4 bands of uint16, but the other images have 5 bands of uint16"
        ]


def test_photographs_are_read_as_before(tmp_path: Path) -> None:
    Image.fromarray(values("uint8", 9, 12, 4), "RGBA").save(tmp_path / "a.png")
    read = FileRequest(str(tmp_path / "a.png"), 0).read().image_HWC
    assert read.shape == (9, 12, 3)
    assert read.dtype == np.uint8
