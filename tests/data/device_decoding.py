"""What the tests of decoding on the device share."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mptui.data.decode import device_jpeg
from mptui.data.decode.image import FileRequest
from mptui.data.loading.loader import Loader
from mptui.registry.samples import SampleKind

from .loaders import CPU
from .samples import Samples

SIDE = 48
OFF = 3.0
"""Of 255, in a view on average: JPEGs are decoded at full size here, and resized by Pillow's own filter."""
SIZES = ((130, 98), (98, 130), (200, 60), (64, 64), (31, 40))


def of_files(paths: list[Path]) -> Samples:
    return Samples(len(paths), lambda index: FileRequest(str(paths[index]), index % 10))


def loader(split: Samples, **settings: Any) -> Loader:
    chosen: dict[str, Any] = {
        "kind": SampleKind.CLASS,
        "batch_size": 5,
        "side": SIDE,
        "num_classes": 10,
        "device": CPU,
        "train": True,
        "augment": True,
        "seed": 5,
        "decode_on_device": True,
    }
    return Loader(split, **{**chosen, **settings})


def device_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is decoded from now on where the training is: how many files in each call."""
    calls: list[int] = []
    plain = device_jpeg.decoded

    def decoded(files: list[torch.Tensor], on: torch.device) -> list[torch.Tensor | None]:
        calls.append(len(files))
        return plain(files, on)

    monkeypatch.setattr(device_jpeg, "decoded", decoded)
    return calls


def off(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The mean difference of each image, of 255: images are normalised by a deviation of about 0.225."""
    return (found - expected).abs().mean(dim=(1, 2, 3)) * 0.225 * 255
