"""All data paths from files to crops: cache modes, prepared sets, and the path of a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data import device_cache
from mptui.data.device_cache import cut_by_products
from mptui.data.open import files_of, open_dataset
from mptui.data.prepare import ConversionRequest, prepare_set
from mptui.data.transforms import IMAGENET, default_resize
from mptui.data.types import Pixels, Split
from mptui.registry.names import SampleKind
from mptui.registry.tasks import task_for
from tests.made.loaders import built_loader

EXACT = {"ram": 0.0, "device": 0.0, "prepared, lossless": 0.0, "prepared, in ram": 0.0}
"""Modes whose crops are bit-identical to `off`."""
TOLERANCES = {
    **EXACT,
    "device, as on a GPU": 1.0,  # Pillow's exact weights, which a CPU approximates
    "prepared": 3.0,  # JPEG encoded again, at quality 95
}
"""Largest mean difference of a crop's pixels from those of `data.cache = off`, of 255."""


def open_split(folder: Path, kind: SampleKind) -> Split:
    return open_dataset(
        DataConfig(path=str(folder), val_fraction=0.01),
        kind=kind,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    ).train


def prepared(folder: Path, out: Path, side: int, quality: int) -> Path:
    if out.exists():
        return out
    config = DataConfig(path=str(folder))
    name, kind, found = files_of(config, None, lambda *_: None, lambda: False)
    order = ConversionRequest(
        name, str(task_for(kind)), found, out, side, default_resize(side), quality, config
    )
    prepare_set(order, lambda line: None, lambda done, total: None, lambda: False)
    return out


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Crop whole images by matrix products, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_cache, "_cut_on_host", cut_by_products)
        yield


def batches_of(
    folder: Path, mode: str, made: Path, *, kind: SampleKind, side: int, epochs: int, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all training images as RGB in 0..255, in sample order, and their labels or masks.

    Prepared sets are made in the folder `made` where they are not there yet.
    """
    if mode.startswith("prepared"):
        quality = 95 if mode == "prepared" else 0
        folder = prepared(folder, made / f"{folder.name}-{quality}-{side}", side, quality)
    cache = next((each for each in ("ram", "device") if mode.startswith(each) or mode.endswith(each)), "off")
    chosen: dict[str, Any] = {
        "kind": kind, "batch_size": 7, "side": side, "num_classes": 10, "device": torch.device("cpu"),
        "train": True, "augment": True, "seed": 3, "cache": cache, "workers": 1, **settings,
    }  # fmt: skip
    images, targets = [], []
    with built_loader(open_split(folder, kind), **chosen) as loader:
        for epoch in range(epochs):
            found = [batch for window in loader.windows(epoch, 2) for batch in window]
            order = np.argsort(np.concatenate([batch.sample_indices for batch in found]))
            images.append(torch.cat([batch.images_BCHW for batch in found])[order])
            targets.append(torch.cat([batch.targets for batch in found])[order])
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET.mean, IMAGENET.std))
    return (torch.cat(images) * std + mean) * 255, torch.cat(targets)


def wide(width: int, height: int, seed: int) -> Pixels:
    """Return fine grey texture that is red outside the centre square."""
    random = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.uint8)
    rough = Image.fromarray(random.integers(0, 256, (height // 3, width // 3), np.uint8))
    image[:] = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC))[:, :, None] // 2
    image[:, : width // 4, 0] = image[:, width - width // 4 :, 0] = 255
    return image


def outside_and_sharpness(images: torch.Tensor) -> tuple[float, float]:
    """Return the fraction of crops that show anything outside the middle half, and their local contrast."""
    green = images[:, 1]
    outside = (images[:, 0] - green > 80).flatten(1).any(dim=1).float().mean()
    return outside.item(), (green[:, :, 1:] - green[:, :, :-1]).abs().mean().item()
