"""Transforms of a person's own: the same views for any reader, image and mask together, faults by name."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mptui.data import reading
from mptui.data.loader import Loader
from mptui.data.sampler import Share
from mptui.data.transforms import IMAGENET
from mptui.errors import ConfigError, OwnCodeError
from tests import program
from tests.data.loaders import assert_same, batches, loader, segmentation
from tests.data.samples import Drawn, Masked, Samples
from tests.decoders import forks_of
from tests.toys.own_transforms import own_transforms

Make = Callable[..., Loader]


@pytest.fixture
def module(tmp_path: Path) -> str:
    return own_transforms(tmp_path)


def generators() -> tuple[Any, ...]:
    arrays = np.random.get_state(legacy=False)["state"]
    return torch.get_rng_state().tolist(), random.getstate(), arrays["key"].tolist(), arrays["pos"]


@pytest.mark.parametrize("make", [loader, segmentation])
@pytest.mark.parametrize("name", ["affine", "moved"])
def test_views_are_the_same_with_any_cache_and_number_of_workers_and_of_ranks(
    make: Make, name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "start", forks_of(program.server()))  # they import torch
    split = Samples(18, Masked if make is segmentation else Drawn)
    names = ("crop", f"{module}:{name}", "colour")
    with make(split, names=names) as plain, make(split, names=names[::2]) as without:
        expected = [batches(plain, epoch) for epoch in (0, 1)]
        (before, *_), (changed, *_) = batches(without), expected[0]
        rest = batches(plain, 1, start_sample=8)
    assert (before.images_BCHW != changed.images_BCHW).any()
    assert_same(rest, expected[1][1:])
    states = generators()
    for settings in ({"cache": "ram"}, {"workers": 2}, {"workers": 1, "cache": "ram"}):
        with make(split, names=names, **settings) as other:
            for epoch, wanted in enumerate(expected):
                assert_same(batches(other, epoch), wanted)
    found: list[Any] = []
    for rank in range(3):
        with make(split, names=names, share=Share(rank, 3)) as part:
            found.append(batches(part, 1))
    for number, batch in enumerate(expected[1]):
        assert_same([each[number] for each in found if number < len(each)], [batch])
    assert generators() == states


def test_each_sample_epoch_and_seed_has_its_own_numbers(module: str) -> None:
    found = []
    for epoch, seed in ((0, 5), (1, 5), (0, 6)):
        with loader(Samples(40), names=(f"{module}:moved",), batch_size=40, seed=seed) as it:
            (batch,) = batches(it, epoch)
        found.append(batch.images_BCHW[torch.argsort(torch.as_tensor(batch.sample_indices))])
    for other in found[1:]:
        assert (found[0] != other).flatten(1).any(dim=1).float().mean() > 0.9


@pytest.mark.parametrize("name", ["affine", "moved", "Inverted"])
def test_masks_move_with_their_images(name: str, module: str) -> None:
    """Images are white where their masks are 1; the second and third band are not changed but moved."""
    with segmentation(Samples(24, Masked), names=(f"{module}:{name}",), side=32) as it:
        found = batches(it)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET.mean, IMAGENET.std))
    for batch in found:
        green_BHW = (batch.images_BCHW * std + mean)[:, 1]
        white_BHW = green_BHW < 0.5 if name == "Inverted" else green_BHW > 0.5
        assert (white_BHW == (batch.targets == 1)).float().mean() > 0.97  # images are antialiased
        assert 0 < batch.targets.float().mean() < 1


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("scaled", loader, "it returned float32 [3, 24, 24] for an image of uint8 [3, 24, 24]"),
        ("scaled", segmentation, "it returned float32 [3, 24, 24] for an image of uint8 [3, 24, 24]"),
        ("small", loader, "it returned uint8 [3, 8, 8] for an image of uint8 [3, 24, 24]"),
        ("alone", segmentation, "it returned uint8 [3, 24, 24] for an image and its mask"),
        ("numbered", segmentation, "its mask has the value 2, but there are 2 classes"),
        ("numbered", loader, "numbered() missing 1 required positional argument: 'mask'"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_not_as_it_was_given_is_told_with_the_name(
    name: str, make: Make, told: str, workers: int, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "start", forks_of(program.server()))
    split = Samples(8, Masked if make is segmentation else Drawn)
    with (
        make(split, names=(f"{module}:{name}",), workers=workers) as it,
        pytest.raises(OwnCodeError) as raised,
    ):
        batches(it)
    assert str(raised.value.message) == f"{module}:{name}: {told}"


def test_a_bug_is_told_with_its_line_and_a_fault_inside_torchvision_with_the_name(
    module: str, tmp_path: Path
) -> None:
    with (
        loader(Samples(8), names=(f"{module}:broken",)) as it,
        pytest.raises(OwnCodeError, match=r"py:\d+: KeyError: 'image'\n.*# the mistake"),
    ):
        batches(it)
    name = f"{module}:normalized"
    with (
        loader(Samples(8), names=(name,)) as it,
        pytest.raises(OwnCodeError, match=f"{name}: TypeError: .*float"),
    ):
        batches(it)
    with (
        loader(Samples(8), names=("torchvision.transforms.v2.functional:invert_",)) as it,
        pytest.raises(ConfigError, match="has no 'invert_'"),
    ):
        batches(it)


def test_a_class_is_made_and_what_is_no_transform_is_refused(module: str) -> None:
    for name in (
        f"{module}:Inverted",
        "torchvision.transforms.v2:RandomInvert",
        "torchvision.transforms.v2.functional:invert",
    ):
        with loader(Samples(8), names=(name,)) as it:
            assert len(batches(it)) == 1
    with (
        loader(Samples(8), names=(f"{module}:size",)) as it,
        pytest.raises(ConfigError, match="can't be called"),
    ):
        batches(it)
