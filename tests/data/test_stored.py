"""`data.cache = "ram"`: images are read once, shared by all workers, and bit-identical in any case."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from mptui.data.batch import Batch
from mptui.data.decode import FileRequest
from mptui.data.loader import Loader
from mptui.data.ram_cache import CachedSplit, SampleCache, cache_bytes
from mptui.data.transforms import Geometry, cut_image, resized, views
from mptui.data.types import Decoded, SampleRequest
from mptui.registry.names import SampleKind
from tests.data.images import photo
from tests.data.samples import Broken, Deadly, Drawn, Masked, Samples
from tests.made.loaders import built_loader

SIDE = 24


def loader(split: Samples | None = None, **settings: Any) -> Loader:
    chosen: dict[str, Any] = {
        "kind": SampleKind.CLASS,
        "batch_size": 8,
        "side": SIDE,
        "num_classes": 10,
        "device": torch.device("cpu"),
        "train": True,
        "augment": True,
        "seed": 5,
        "cache": "ram",
    }
    return built_loader(split or Samples(52), **{**chosen, **settings})


def segmentation(split: Samples | None = None, **settings: Any) -> Loader:
    split = split or Samples(52, lambda index: Masked(index, ignored_rows=20))
    return loader(split, kind=SampleKind.MASK, num_classes=2, **settings)


def epoch(of: Loader, number: int, start: int = 0) -> list[Batch]:
    return [batch for window in of.windows(number, 1, start) for batch in window]


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.sample_indices.tolist() == other.sample_indices.tolist()
        assert one.valid == other.valid
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.images_BCHW, other.images_BCHW)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Forty photos of several shapes."""
    made = [tmp_path / f"{number}.jpg" for number in range(40)]
    for number, path in enumerate(made):
        photo(60 + 7 * number, 50 + 90 * (number % 3), seed=number).save(path, quality=92)
    return made


def of_files(files: list[Path]) -> Samples:
    return Samples(len(files), lambda index: FileRequest(str(files[index]), index % 10))


def no_room(taken: int) -> int:
    return 0


@pytest.mark.parametrize("make", [loader, segmentation])
def test_the_same_bits_with_any_number_of_workers_and_from_any_sample(make: Callable[..., Loader]) -> None:
    with make() as it:
        expected = [epoch(it, number) for number in range(3)]
        assert_same(epoch(it, 1), expected[1])  # already cached
    for workers in (1, 3):
        with make(workers=workers) as it:
            for number in range(3):
                assert_same(epoch(it, number), expected[number])
    with make(workers=2) as resumed:  # with an empty cache, then a half-full one
        assert_same(epoch(resumed, 1, start=24), expected[1][3:])
        assert_same(epoch(resumed, 2), expected[2])
    with make(workers=2, cache_room=no_room) as nothing_kept:
        assert_same(epoch(nothing_kept, 2), expected[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_read_in_the_first_epoch_alone(files: list[Path], workers: int) -> None:
    with loader(of_files(files)) as it:
        expected = epoch(it, 1)
    with loader(of_files(files), workers=workers) as it:
        epoch(it, 0)
        for path in files:
            path.unlink()
        assert_same(epoch(it, 1), expected)


@pytest.mark.parametrize("settings", [{"train": False}, {"augment": False}])
@pytest.mark.parametrize("make", [loader, pytest.param(segmentation, marks=pytest.mark.slow)])
def test_where_nothing_is_random_the_bits_are_those_of_no_cache(
    make: Callable[..., Loader], settings: dict[str, Any]
) -> None:
    with make(**settings) as kept, make(**settings, cache="off") as off:
        for number in (0, 1, 2):
            assert_same(epoch(kept, number), epoch(off, number))


def test_a_validation_of_photos_is_that_of_no_cache(files: list[Path]) -> None:
    with (
        loader(of_files(files), train=False) as kept,
        loader(of_files(files), train=False, cache="off") as off,
    ):
        for _ in range(2):
            assert_same(epoch(kept, 0), epoch(off, 0))


def test_bad_samples_are_those_of_no_cache() -> None:
    split = Samples(52, lambda index: Broken(index) if index % 9 == 4 else Drawn(index))
    with (
        loader(split, workers=2, bad_budget=0.2) as kept,
        loader(split, cache="off", bad_budget=0.2) as off,
    ):
        for number in (0, 1):
            for found, expected in zip(epoch(kept, number), epoch(off, number), strict=True):
                assert found.sample_indices.tolist() == expected.sample_indices.tolist()
                assert torch.equal(found.targets, expected.targets)
        assert sorted(map(str, kept.bad)) == sorted(map(str, off.bad))


def test_a_worker_that_dies_leaves_no_half_sample(tmp_path: Path) -> None:
    with loader(Samples(52)) as it:
        expected = [epoch(it, number) for number in (0, 1)]
    split = Samples(52, lambda index: Deadly(index, tmp_path / "died") if index == 17 else Drawn(index))
    with loader(split, workers=2) as it:
        for number in (0, 1):
            assert_same(epoch(it, number), expected[number])
    assert (tmp_path / "died").exists()


def test_reading_less_ahead_keeps_what_is_kept(files: list[Path]) -> None:
    with loader(of_files(files), workers=2, prefetch=4) as it:
        epoch(it, 0)
        for path in files:
            path.unlink()
        assert it.read_less()
        assert len(epoch(it, 1)) == 5


def test_a_window_read_aside_leaves_the_shelf_open() -> None:
    with loader(workers=1) as it:
        windows = it.windows(0, 1)
        first = list(next(windows))
        with it.window_at(0, 1, 0) as window:
            assert_same(list(window), first)
        rest = [batch for window in windows for batch in window]
        assert_same(rest, epoch(it, 0)[1:])


def test_no_more_is_kept_than_there_is_room_for() -> None:
    told: list[tuple[int, int]] = []
    taken: list[int] = []

    def room(already: int) -> int:
        taken.append(already)
        return 1 << 30 if len(taken) < 3 else 0

    split = Samples(256)
    with (
        loader(split) as it,
        loader(split, cache_room=room, on_cache_full=lambda *figures: told.append(figures)) as short,
    ):
        for number in (0, 1):
            assert_same(epoch(short, number), epoch(it, number))
    assert told == [(128, 256)]
    assert taken[0] == 0 < taken[1]


def test_memory_is_given_back() -> None:
    gc.collect()
    process = psutil.Process()
    before = process.num_fds()
    it = loader(workers=1)
    epoch(it, 0)
    it.close()
    it.close()
    assert process.num_fds() <= before


def test_a_half_written_sample_is_read_again() -> None:
    split = CachedSplit(
        Samples(3),
        Geometry.for_training(SampleKind.CLASS, SIDE),
        masks=False,
        room=lambda taken: 1 << 30,
        on_full=lambda kept, count: None,
    )
    whole = split.request(1).read()
    cache: SampleCache = split.cache
    assert cache.find(1) is not None
    assert cache.find(0) is None
    assert cache.find(2) is None
    os.pwrite(cache.fd, bytes(8), cache.slot_bytes)  # a header that was not written
    assert cache.find(1) is None
    assert np.array_equal(split.request(1).read().image_HWC, whole.image_HWC)
    split.close()


def test_views_of_a_resized_image_are_those_of_the_file() -> None:
    """A cached image smaller than the photo makes no difference in crops no smaller than the output."""
    side = 96
    geometry = Geometry.for_training(SampleKind.CLASS, side, crop_scale=(0.3, 1.0))
    for number in range(4):
        decoded = Decoded(np.array(photo(600 + 40 * number, 450, seed=number)))
        whole, kept = decoded.image_HWC, resized(decoded, geometry.resize).image_HWC
        assert min(kept.shape[:2]) == 2 * side
        draws = np.random.default_rng(0).random((8, 7))
        for row in draws:
            cuts = []
            for image in (whole, kept):
                sides = np.array([float(image.shape[1])]), np.array([float(image.shape[0])])
                boxes, flips = views(geometry, row[None], *sides)
                cuts.append(cut_image(image, boxes[0], flips[0], side).astype(float))
            assert np.abs(cuts[0] - cuts[1]).mean() < 4.0


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (400, 300, (134, 100)),
        (300, 400, (100, 134)),
        (80, 60, (80, 60)),
        (3000, 100, (948, 31)),
        (50, 2000, (27, 1095)),
    ],
)
def test_what_is_kept_is_never_larger_than_it_need_be(
    width: int, height: int, expected: tuple[int, int]
) -> None:
    sample = Decoded(np.zeros((height, width, 3), np.uint8), mask_HW=np.zeros((height, width), np.int16))
    kept = resized(sample, 100)
    assert kept.mask_HW is not None
    assert kept.image_HWC.shape[:2] == kept.mask_HW.shape
    assert kept.image_HWC.shape[0] * kept.image_HWC.shape[1] <= 3 * 100 * 100
    assert np.abs(np.array(kept.image_HWC.shape[1::-1]) - expected).max() <= 1


@pytest.mark.parametrize("augment", [True, False])
def test_the_bytes_told_are_those_taken(files: list[Path], augment: bool) -> None:
    make = Geometry.for_training if augment else Geometry.for_validation
    geometry = make(SampleKind.CLASS, SIDE)
    requests: list[SampleRequest] = [FileRequest(str(path), 0) for path in files]
    sizes = [sorted(request.read().image_HWC.shape[:2]) for request in requests]
    split = CachedSplit(
        of_files(files), geometry, masks=False, room=lambda taken: 1 << 30, on_full=lambda kept, count: None
    )
    for index in range(len(files)):
        split.request(index).read()
    taken = os.fstat(split.cache.fd).st_blocks * 512
    split.close()
    told = cache_bytes(geometry, 3, len(files), np.array(sizes, np.uint16))
    assert told * 0.8 <= taken <= told * 1.2
