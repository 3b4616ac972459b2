from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mptui.data.loader import Loader
from mptui.data.reading import Pool
from mptui.data.transforms import IMAGENET, Normalization
from mptui.data.types import IGNORE, SampleRequest
from mptui.data.worker import ReadTask
from mptui.errors import ConfigError
from tests.data.loaders import (
    SIDE,
    assert_same,
    batches,
    broken_every_ninth,
    joined,
    loader,
    segmentation,
)
from tests.data.samples import Drawn, Masked, Samples

# -- bit-identical for any number of workers ------------------------------------------------------


@pytest.mark.parametrize("make", [loader, segmentation])
def test_any_number_of_workers_gives_the_same_bits(make: Callable[..., Loader]) -> None:
    split = Samples(52, Masked if make is segmentation else Drawn)
    found = []
    for workers in (0, 1, 3):
        with make(split, workers=workers) as it:
            found.append([*batches(it, epoch=0), *batches(it, epoch=1)])
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.parametrize("cache", ["off", "device", pytest.param("ram", marks=pytest.mark.slow)])
def test_an_epoch_goes_on_from_any_sample_with_any_batch_size(cache: str) -> None:
    with loader(cache=cache) as it, loader(cache=cache, batch_size=5, workers=1) as other:
        images, targets, indices = joined(batches(it, epoch=3))
        for start in (0, 1, 2, 5, 7, 8, 9, 15, 16, 17, 25, 33, 40, 47, 48, 49, 50):
            for resumed in (it, other) if start % 8 == 0 else (it,):
                tail = batches(resumed, epoch=3, accumulate=2, start_sample=start)
                tail_images, tail_targets, tail_indices = joined(tail)
                until = start + len(tail_indices)
                assert until >= 51
                assert tail_indices == indices[start:until]
                assert torch.equal(tail_targets, targets[start:until])
                assert torch.equal(tail_images, images[start:until])


def test_windows_say_where_to_go_on() -> None:
    with loader(Samples(49)) as it:
        windows = list(it.windows(0, 3))
        assert [window.index for window in windows] == [0, 1]
        assert [window.next_sample for window in windows] == [24, 49]
        assert [window.index for window in it.windows(0, 3, start_sample=24)] == [1]
        assert list(it.windows(0, 3, start_sample=49)) == []


def test_a_training_epoch_is_a_permutation_of_its_own_and_a_validation_is_in_order() -> None:
    with loader(workers=2) as it:
        first, second = joined(batches(it, 0))[2], joined(batches(it, 1))[2]
    assert sorted(first) == sorted(second) == list(range(52))
    assert first != second != list(range(52))
    with loader(train=False) as it:
        assert joined(batches(it, 1))[2] == list(range(52))


def test_views_and_colours_change_from_epoch_to_epoch_in_training_only() -> None:
    with loader(Samples(8)) as it:
        first, second = joined(batches(it, 0)), joined(batches(it, 1))
        back = [first[2].index(index) for index in second[2]]
        assert not torch.isclose(first[0][back], second[0]).all(dim=(1, 2, 3)).any()
    for settings in ({"train": False}, {"augment": False}):
        with loader(Samples(8), **settings) as it:
            first, second = joined(batches(it, 0)), joined(batches(it, 1))
            assert torch.equal(first[0][np.argsort(first[2])], second[0][np.argsort(second[2])])


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_images_are_normalised_floats_in_the_layout_asked_for(channels_last: bool, cache: str) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for augment in (True, False):
        with loader(cache=cache, channels_last=channels_last, augment=augment) as it:
            for batch in batches(it):
                assert batch.images_BCHW.shape == (batch.size, 3, SIDE, SIDE)
                assert batch.images_BCHW.dtype == torch.float32
                assert batch.images_BCHW.is_contiguous(memory_format=layout)
                assert batch.targets.dtype == torch.int64
                assert batch.targets.tolist() == (batch.sample_indices % 10).tolist()


# -- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_seven_batches_by_four_are_two_windows(cache: str) -> None:
    with loader(cache=cache) as it:
        assert (it.batches, it.steps(4)) == (7, 2)
        windows = list(it.windows(0, 4))
        assert [(len(window), window.size, window.valid) for window in windows] == [(4, 32, 32), (3, 20, 20)]


@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_valid_counts_pixels_that_are_not_ignored(cache: str) -> None:
    def make(index: int) -> SampleRequest:
        return Masked(index, ignored_rows=96 if index == 0 else index * 2)

    with segmentation(Samples(28, make), batch_size=4, augment=False, cache=cache) as it:
        assert it.steps(4) == 2
        for window in it.windows(0, 4):
            counts = [int((batch.targets != IGNORE).sum()) for batch in window]
            assert [batch.valid for batch in window] == counts
            assert window.valid == sum(counts) < window.size * SIDE * SIDE


def test_valid_counts_pixels_of_random_crops() -> None:
    with segmentation(Samples(12, lambda index: Masked(index, ignored_rows=40)), batch_size=4) as it:
        for window in it.windows(0, 2):
            assert window.valid == sum(int((batch.targets != IGNORE).sum()) for batch in window)


def test_ignored_pixels_are_not_cropped_on_the_device() -> None:
    with (
        segmentation(Samples(4, lambda index: Masked(index, ignored_rows=2)), cache="device") as it,
        pytest.raises(ConfigError, match="ignored"),
    ):
        it.prepare()


@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_masks_lie_where_their_images_say(cache: str) -> None:
    names = ("crop", "flip", "vertical_flip", "turn", "colour")
    with segmentation(Samples(40, Masked), cache=cache, side=64, names=names) as it:
        found = batches(it)
    mean = torch.tensor(IMAGENET.mean).view(3, 1, 1)
    std = torch.tensor(IMAGENET.std).view(3, 1, 1)
    agreements = [
        ((batch.images_BCHW * std + mean).mean(dim=1) > 0.5).eq(batch.targets == 1).float().mean().item()
        for batch in found
    ]
    assert min(agreements) > 0.97


@pytest.mark.parametrize("cache", ["off", "device"])
def test_images_have_the_normalisation_asked_for(cache: str) -> None:
    own = Normalization((0.5, 0.1, 0.0), (1.0, 0.5, 0.2))
    with (
        loader(cache=cache, augment=False) as usual,
        loader(cache=cache, augment=False, normalization=own) as it,
    ):
        pixels = [
            joined(batches(each))[0] * torch.tensor(by.std).view(3, 1, 1)
            + torch.tensor(by.mean).view(3, 1, 1)
            for each, by in ((usual, IMAGENET), (it, own))
        ]
    torch.testing.assert_close(*pixels)


def test_a_window_can_be_gone_through_again() -> None:
    for cache in ("off", "device"):
        with loader(cache=cache) as it:
            for window in it.windows(0, 3):
                assert_same(list(window), list(window))


@pytest.mark.parametrize(("count", "settings", "sizes"), [
    (17, {}, [8, 8]),
    (18, {}, [8, 8, 2]),
    (3, {}, [3]),
    (1, {}, [1]),
    (3, {"batch_size": 1}, [1, 1, 1]),
    (17, {"train": False}, [8, 8, 1]),
])  # fmt: skip
def test_short_last_batches(count: int, settings: dict[str, Any], sizes: list[int]) -> None:
    with loader(Samples(count), **settings) as it:
        assert [batch.size for batch in batches(it)] == sizes
        assert it.batches == len(sizes)


@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_a_short_last_batch_has_its_own_samples_alone_and_says_so(cache: str) -> None:
    with loader(Samples(11), train=False, cache=cache) as it:
        whole, last = batches(it)
    assert (last.size, last.valid, last.sample_indices.tolist()) == (3, 3, [8, 9, 10])
    assert last.images_BCHW.shape[0] == last.targets.shape[0] == 3
    assert (whole.is_whole, last.is_whole) == (True, False)


def test_the_only_batch_of_a_set_is_a_whole_one() -> None:
    for train in (True, False):
        with loader(Samples(3), train=train) as it:
            assert [batch.is_whole for batch in batches(it)] == [True]


@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_mixed_images_have_both_targets(cache: str) -> None:
    with loader(cache=cache, mixup_alpha=1.0) as mixed, loader(cache=cache) as plain:
        for found, expected in zip(batches(mixed), batches(plain), strict=True):
            images = expected.images_BCHW
            assert found.mixed_targets is not None
            assert torch.equal(found.targets, expected.targets)
            assert torch.equal(found.mixed_targets, found.targets.roll(1, 0))
            torch.testing.assert_close(
                found.images_BCHW, found.lam * images + (1 - found.lam) * images.roll(1, 0)
            )
        shares = [[batch.lam for batch in batches(mixed, epoch)] for epoch in (0, 1)]
        assert len({*shares[0], *shares[1]}) == 14
    with loader(cache=cache, mixup_alpha=1.0, train=False) as it:
        assert all(batch.mixed_targets is None and batch.lam == 1.0 for batch in batches(it))


# -- device cache ---------------------------------------------------------------------------------


def test_cached_pixels_are_those_of_the_uncached_way() -> None:
    told: list[tuple[int, int]] = []
    with (
        loader(augment=False) as off,
        loader(augment=False, cache="device", workers=2, on_progress=lambda *at: told.append(at)) as cached,
    ):
        assert_same(batches(cached), batches(off))
        assert cached.worker_pids == []
    assert told[-1] == (52, 52)


def test_cached_bad_samples_are_replaced() -> None:
    with loader(Samples(52, broken_every_ninth), cache="device", bad_budget=0.2) as it:
        found = batches(it)
        assert len(it.bad) == 6
    for batch in found:
        assert batch.targets.tolist() == (batch.sample_indices % 10).tolist()


def test_a_cache_is_filled_in_messages_of_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    submit = Pool.submit

    def counted(pool: Pool, task: ReadTask) -> None:
        sizes.append(len(task.indices))
        submit(pool, task)

    monkeypatch.setattr(Pool, "submit", counted)
    with loader(Samples(300), cache="device", workers=2) as filled:
        filled.prepare()
    assert sizes == [64, 64, 64, 64, 22, 22]


@pytest.mark.parametrize("augment", [True, False])
def test_a_window_read_before_the_first_epoch_fills_the_cache_once_by_the_workers(
    augment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `memory.micro_batch = "auto"`, which reads a batch before training starts."""
    by: list[tuple[int, int]] = []
    submit = Pool.submit

    def counted(pool: Pool, task: ReadTask) -> None:
        by.append((pool.size, len(task.indices)))
        submit(pool, task)

    monkeypatch.setattr(Pool, "submit", counted)
    with loader(Samples(300), cache="device", workers=2, augment=augment) as it:
        with it.window_at(0, 1, 0) as window:
            first = list(window)
        found = batches(it)
    assert_same(found[:1], first)
    assert {size for size, _ in by} == {2}
    assert sum(count for _, count in by) == 300
