"""Sets of images with many bands or more than 8 bits: found, measured, trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data import scan
from mptui.data.dataset import FileSplit
from mptui.data.open import open_dataset
from mptui.data.scan import measure
from mptui.data.types import RGB, Dataset, PixelFormat, Pixels
from mptui.engine.mailbox import Mailbox
from mptui.errors import ConfigError, DataError
from mptui.registry.names import SampleKind
from mptui.runs.planning.build import PreparedRun, prepare
from tests.data.images import png_of, values
from tests.data.loaders import batches
from tests.made.loaders import built_loader
from tests.made.runs import plan_of
from tests.toys.own_transforms import own_transforms
from tests.toys.training import SMALL

SIDE = 32
CLASSES = 3


def open_folder(folder: Path, told: list[str] | None = None, **settings: Any) -> Dataset:
    return open_dataset(
        DataConfig(path=str(folder), **settings),
        kind=SampleKind.CLASS,
        side=SIDE,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=(told if told is not None else []).append,
    )


def save(path: Path, pixels_HWC: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, pixels_HWC, photometric="minisblack", planarconfig="contig")


def satellite(folder: Path, count: int) -> list[Pixels]:
    """Save 13 bands of uint16, of which only the low 6 bits of band 9 tell the class."""
    random = np.random.default_rng(0)
    images = []
    for index in range(count):
        label = index % CLASSES
        pixels = random.integers(0, 65_536, (SIDE, SIDE, 13), dtype=np.uint16)
        pixels[..., 9] = (40_000 & ~63) + 20 * label + random.integers(0, 20, (SIDE, SIDE))
        save(folder / f"class_{label}" / f"{index:03d}.tif", pixels)
        images.append(pixels)
    return images


def test_the_settings_name_is_told_for_images_that_rgb_cant_hold(tmp_path: Path) -> None:
    satellite(tmp_path, 6)
    with pytest.raises(DataError) as error:
        open_folder(tmp_path)
    assert '13 bands of uint16, which data.bands = "rgb" can\'t read' in str(error.value)
    assert "data.bands=all" in error.value.hint


def test_images_that_lose_bits_as_rgb_are_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for index in range(4):
            (tmp_path / name / f"{index}.png").write_bytes(png_of(values("uint16", 9, 9, 3), 2))
    for _ in range(2):  # the second time from the cache of the scan
        told: list[str] = []
        assert open_folder(tmp_path, told).pixels == RGB
        assert len(told) == 1
        assert 'data.bands = "all" reads them as they are stored' in told[0]
        assert "0.png (3 bands of uint16)" in told[0]
        dataset = open_folder(tmp_path, told, bands="all")
        assert dataset.pixels == PixelFormat(3, "uint16")
        assert dataset.train.request(0).read().image_HWC.dtype == np.uint16


def test_files_of_another_format_are_bad_samples(tmp_path: Path) -> None:
    satellite(tmp_path, 12)
    save(tmp_path / "class_0" / "odd.tif", values("uint16", SIDE, SIDE, 12))
    save(tmp_path / "class_1" / "odd.tif", values("float32", SIDE, SIDE, 13))
    Image.new("RGB", (9, 9)).save(tmp_path / "class_2" / "odd.jpg")
    with pytest.raises(DataError, match="3 of 15 samples can't be used"):
        open_folder(tmp_path, bands="all")
    found = open_folder(tmp_path, bands="all", bad_sample_budget=0.2)
    assert len(found.train) + len(found.val) == 12
    assert sorted(problem.reason for problem in found.problems) == [
        f"{other}, but the other images have 13 bands of uint16"
        for other in ("12 bands of uint16", "13 bands of float32", "3 bands of uint8")
    ]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_statistics_are_exact_with_any_number_of_processes(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [values(dtype, 9 + index, 11, 3, seed=index) for index in range(20)]
    for image in images:
        image[..., 1] = 7
    files = [str(tmp_path / f"{index}.tif") for index in range(20)]
    for file, image in zip(files, images, strict=True):
        save(Path(file), image)
    found = []
    for processes in (1, 3):
        monkeypatch.setattr(scan, "processors", lambda count=processes: count)
        form = PixelFormat(3, dtype)
        found.append(measure(files, form, lambda done, total: None, lambda: False))
    assert found[0] == found[1]
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]).astype(np.longdouble)
    pixels /= 255 if dtype == "uint8" else 1
    np.testing.assert_allclose(found[0].mean, pixels.mean(axis=0).astype(float), rtol=1e-14)
    std = pixels.std(axis=0).astype(float)
    np.testing.assert_allclose(found[0].std, [std[0], 1.0, std[2]], rtol=1e-12)


@pytest.mark.slow
def test_the_low_bits_of_one_band_can_be_learnt(tmp_path: Path) -> None:
    satellite(tmp_path, 200)
    dataset = open_folder(tmp_path, bands="all")
    assert isinstance(dataset.train, FileSplit)
    own = measure(dataset.train.files, dataset.pixels, lambda done, total: None, lambda: False)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(13, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, CLASSES),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
    how: dict[str, Any] = {
        "kind": SampleKind.CLASS, "pixels": dataset.pixels, "batch_size": 16, "side": SIDE, "seed": 0,
        "num_classes": CLASSES, "device": torch.device("cpu"), "normalization": own, "cache": "ram",
    }  # fmt: skip
    with built_loader(dataset.train, train=True, augment=True, **how) as train:
        for epoch in range(8):
            for window in train.windows(epoch, 1):
                for batch in window:
                    loss = torch.nn.functional.cross_entropy(network(batch.images_BCHW), batch.targets)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    with built_loader(dataset.val, train=False, augment=False, **how) as val, torch.no_grad():
        batches = [batch for window in val.windows(0, 1) for batch in window]
        right = sum(int((network(b.images_BCHW).argmax(1) == b.targets).sum()) for b in batches)
    assert right >= 0.95 * len(dataset.val)


def test_transforms_of_rgb_are_refused_for_bands_and_a_persons_own_moves_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = own_transforms(tmp_path)
    satellite(tmp_path / "data", 12)
    about_shapes = ("data.name", "data.samples")
    settings = {key: value for key, value in SMALL.items() if key not in about_shapes}
    settings |= {"data.path": str(tmp_path / "data"), "data.bands": "all", "model.name": "resnet18"}

    def prepared(*names: str) -> PreparedRun:
        plan = plan_of({**settings, "data.augment": list(names)}, trust_code=True)
        return prepare(plan, mailbox=Mailbox())

    for name in ("colour", "trivial", "rand"):
        with pytest.raises(
            ConfigError, match=f"{name} changes 8-bit RGB alone, these images have 13 bands of"
        ):
            prepared("flip", name)
    found = []
    for names in ([f"{own}:affine"], []):
        job = prepared(*names).job
        with job.train_loader, job.val_loader:
            batch = batches(job.train_loader)[0]
        found.append(batch.images_BCHW[torch.argsort(torch.as_tensor(batch.sample_indices))])
    moved, plain = found
    assert moved.shape == plain.shape == (8, 13, 32, 32)
    assert (moved != plain).flatten(2).any(dim=2).all()
