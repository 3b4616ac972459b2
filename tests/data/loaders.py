"""Loaders of small splits, and their batches."""

from typing import Any

import numpy as np
import torch

from mptui.data.batch import Batch
from mptui.data.loader import Loader
from mptui.data.types import SampleRequest
from mptui.registry.names import SampleKind
from tests.data.samples import Broken, Drawn, Samples
from tests.made.loaders import built_loader

CPU = torch.device("cpu")
SIDE = 24


def loader(split: Samples | None = None, **settings: Any) -> Loader:
    chosen: dict[str, Any] = {
        "kind": SampleKind.CLASS,
        "batch_size": 8,
        "side": SIDE,
        "num_classes": 10,
        "device": CPU,
        "train": True,
        "augment": True,
        "seed": 5,
    }
    return built_loader(split or Samples(52), **{**chosen, **settings})


def segmentation(split: Samples, **settings: Any) -> Loader:
    return loader(split, kind=SampleKind.MASK, num_classes=2, **settings)


def batches(of: Loader, epoch: int = 0, accumulate: int = 1, start_sample: int = 0) -> list[Batch]:
    return [batch for window in of.windows(epoch, accumulate, start_sample) for batch in window]


def joined(found: list[Batch]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    return (
        torch.cat([batch.images_BCHW[: batch.size] for batch in found]),
        torch.cat([batch.targets[: batch.size] for batch in found]),
        np.concatenate([batch.sample_indices for batch in found]).tolist(),
    )


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    images, targets, indices = joined(found)
    expected_images, expected_targets, expected_indices = joined(expected)
    assert indices == expected_indices
    assert torch.equal(targets, expected_targets)
    assert torch.equal(images, expected_images)


def broken_every_ninth(index: int) -> SampleRequest:
    return Broken(index) if index % 9 == 4 else Drawn(index)
