"""Random transforms of training images: what each does, and that caches and workers don't change it."""

from itertools import combinations

import numpy as np
import pytest
import torch

from mptui.data import reading
from mptui.data.transforms import DRAWS, Geometry, cut_image, views
from mptui.errors import ConfigError
from mptui.registry.names import SampleKind
from mptui.registry.transforms import TRANSFORMS
from mptui.runs.planning.plan import Plan, Request, plan_run
from tests import program
from tests.data.loaders import assert_same, batches, loader
from tests.data.samples import Samples
from tests.decoders import forks_of

LISTS = [("colour",), ("flip", "turn"), ("pad_crop", "cutout"), ("crop", "flip", "erase")]
OF_VIEWS = [("trivial",), ("crop", "flip", "rand", "colour", "cutout")]
"""Those that change the pixels of a view where it is cut, on the host."""


@pytest.fixture
def images_BCHW() -> torch.Tensor:
    return torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def transformed(name: str, images_BCHW: torch.Tensor, seed: int = 0) -> torch.Tensor:
    spec = TRANSFORMS[name]
    assert spec.apply is not None
    draws_BD = np.random.default_rng(seed).random((len(images_BCHW), spec.draws))
    return spec.apply(images_BCHW.clone(memory_format=torch.preserve_format), draws_BD)


@pytest.mark.parametrize("names", LISTS, ids="+".join)
def test_images_of_a_seed_are_the_same_with_any_cache_and_number_of_workers(names: tuple[str, ...]) -> None:
    with loader(Samples(20), names=names) as plain:
        expected = [batches(plain, epoch) for epoch in (0, 1)]
        rest = batches(plain, 1, start_sample=8)
    assert_same(rest, expected[1][1:])
    for settings in ({"cache": "ram"}, {"cache": "device"}, {"workers": 1}):
        with loader(Samples(20), names=names, **settings) as other:
            for epoch, wanted in enumerate(expected):
                assert_same(batches(other, epoch), wanted)


@pytest.mark.parametrize("names", OF_VIEWS, ids="+".join)
def test_views_that_change_on_the_host_are_the_same_with_any_cache_and_number_of_workers(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "start", forks_of(program.server()))  # they import torch
    with loader(Samples(20), names=names) as plain:
        expected = [batches(plain, epoch) for epoch in (0, 1)]
        rest = batches(plain, 1, start_sample=8)
    assert_same(rest, expected[1][1:])
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    for settings in ({"cache": "ram"}, {"batch_size": 20}, {"workers": 2}, {"workers": 1, "cache": "ram"}):
        with loader(Samples(20), names=names, **settings) as other:
            for epoch, wanted in enumerate(expected):
                assert_same(batches(other, epoch), wanted)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", ["trivial", "rand"])
def test_most_views_are_changed_each_in_its_own_way(name: str) -> None:
    """The pixels of a sample of one colour tell its operation: others for each sample, epoch and seed."""
    found = []
    for epoch, seed in ((0, 5), (1, 5), (0, 6)):
        with loader(Samples(40), names=(name,), batch_size=40, seed=seed) as it:
            (batch,) = batches(it, epoch)
        found.append(batch.images_BCHW[torch.argsort(torch.as_tensor(batch.sample_indices))])
    with loader(Samples(40), augment=False, train=False, batch_size=40) as it:
        (plain,) = batches(it)
    for one, other in (*combinations(found, 2), *((each, plain.images_BCHW) for each in found)):
        assert (one != other).flatten(1).any(dim=1).float().mean() > 0.7


@pytest.mark.parametrize("names", [*LISTS, *OF_VIEWS], ids="+".join)
def test_images_change_from_epoch_to_epoch(names: tuple[str, ...]) -> None:
    with loader(Samples(8), names=names) as it:
        first, second = (batches(it, epoch)[0] for epoch in (0, 1))
    order, other = (torch.argsort(torch.as_tensor(batch.sample_indices)) for batch in (first, second))
    same_B = (first.images_BCHW[order] == second.images_BCHW[other]).flatten(1).all(dim=1)
    assert same_B.float().mean() < 0.7


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", [name for name, spec in TRANSFORMS.items() if spec.apply])
def test_shape_and_memory_format_are_kept(
    name: str, layout: torch.memory_format, images_BCHW: torch.Tensor
) -> None:
    given = images_BCHW.contiguous(memory_format=layout)
    found = transformed(name, given)
    assert found.shape == given.shape
    assert found.is_contiguous(memory_format=layout)
    assert torch.equal(found, transformed(name, images_BCHW))


def test_a_padded_crop_moves_an_image_that_is_mirrored_at_its_edges(images_BCHW: torch.Tensor) -> None:
    padded = torch.nn.functional.pad(images_BCHW, (2, 2, 2, 2), mode="reflect")
    places = [(top, left) for top in range(5) for left in range(5)]
    found = set()
    for image, moved in zip(padded, transformed("pad_crop", images_BCHW), strict=True):
        crops = [torch.equal(image[:, top : top + 16, left : left + 16], moved) for top, left in places]
        assert sum(crops) == 1
        found.add(crops.index(True))
    assert len(found) > 15


def test_random_erasing_sets_a_rectangle_of_a_quarter_of_the_images_to_the_mean() -> None:
    images = torch.ones(2000, 1, 32, 32)
    erased_BHW = transformed("erase", images)[:, 0] == 0
    chosen = erased_BHW.flatten(1).any(dim=1)
    assert 0.2 < chosen.float().mean() < 0.3
    shares = erased_BHW[chosen].float().mean(dim=(1, 2))
    assert 0.01 < shares.min() < 0.04
    assert 0.29 < shares.max() < 0.36
    for erased in erased_BHW[chosen][:50]:
        rows, columns = erased.any(dim=1), erased.any(dim=0)
        assert torch.equal(erased, rows[:, None] & columns)


def test_cutout_sets_a_square_that_may_reach_over_the_edge_to_the_mean() -> None:
    shares = (transformed("cutout", torch.ones(500, 1, 32, 32)) == 0).float().mean(dim=(1, 2, 3))
    assert shares.max() == 0.25
    assert 0.05 < shares.min() < 0.1


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["flip"], 2), (["vertical_flip"], 2), (["flip", "vertical_flip"], 4), (["turn"], 4),
        (["turn", "flip"], 8), (["turn", "flip", "vertical_flip"], 8),
    ],
)  # fmt: skip
def test_flips_and_turns_make_the_images_of_their_group(names: list[str], count: int) -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    geometry = Geometry.for_training(SampleKind.CLASS, 4, names=names)
    draws = np.random.default_rng(0).random((100, DRAWS))
    boxes, flips = views(geometry, draws, np.full(100, 4.0), np.full(100, 4.0))
    found = {cut_image(image, box, each, 4).tobytes() for box, each in zip(boxes, flips, strict=True)}
    turned = {np.rot90(image, k).tobytes() for k in range(4)}
    mirrored = {each[:, ::-1].tobytes() for each in (image, np.rot90(image, 2))}
    assert len(found) == count
    assert image.tobytes() in found
    if names == ["turn"]:
        assert found == turned
    if names == ["flip", "vertical_flip"]:
        assert found == {image.tobytes(), np.rot90(image, 2).tobytes(), *mirrored}


def planned(*sets: str, model: str = "resnet18") -> Plan:
    flags = {"hardware.device": ("--device", "cpu"), "model.name": ("--model", model)}
    return plan_run(Request(flags=flags, sets=sets, environ={}))


def test_a_list_is_a_setting_and_what_it_leaves_out_does_not_act() -> None:
    config = planned('data.augment=["pad_crop", "flip"]').config
    assert config.data.augment == ["pad_crop", "flip"]
    assert config.data.crop_scale is None
    acts = r"data\.crop_scale .*acts with data\.augment: default or with crop"
    with pytest.raises(ConfigError, match=acts):
        planned('data.augment=["flip"]', "data.crop_scale=[0.5, 1]")
    assert planned('data.augment=["crop"]', "data.crop_scale=[0.5, 1]").config.data.crop_scale == [0.5, 1.0]


def test_what_is_no_transform_or_does_not_suit_the_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="a transform twice"):
        planned('data.augment=["pad_crop", "flip", "pad_crop"]')
    with pytest.raises(ConfigError, match="'pad_crop'"):
        planned('data.augment=["padcrop"]')
    with pytest.raises(ConfigError, match=r"pad_crop does not suit images with masks") as caught:
        planned('data.augment=["pad_crop"]', model="unet")
    assert "vertical_flip" in str(caught.value.hint)
    for name in ("trivial", "rand"):
        for model, images in (("unet", "with masks"), ("diffusion_unet", "that a network learns to make")):
            with pytest.raises(ConfigError, match=f"{name} does not suit images {images}"):
                planned(f'data.augment=["flip", "{name}"]', model=model)
    with pytest.raises(ConfigError, match="crop does not suit images that a network learns to make"):
        planned('data.augment=["crop"]', model="diffusion_unet")
