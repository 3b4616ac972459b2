"""Several processes read the batches that one would, each a part of them."""

from typing import Any

import pytest
import torch

from mptui.data.sampler import Share
from mptui.registry.names import SampleKind
from tests.data.loaders import assert_same, batches, loader
from tests.data.samples import Samples

KINDS: dict[str, dict[str, Any]] = {
    "views": {},
    "mixed": {"mixup_alpha": 0.4, "cutmix_alpha": 1.0},
    "mixed from memory": {"mixup_alpha": 0.4, "cache": "device"},
    "on the device": {"cache": "device"},
    "fixed views on the device": {"cache": "device", "augment": False, "mixup_alpha": 0.4},
    "transformed": {"names": ("flip", "pad_crop", "erase")},
    "changed where they are cut": {"names": ("crop", "trivial", "cutout"), "mixup_alpha": 0.4},
    "noisy": {"kind": SampleKind.IMAGE},
    "by workers": {"workers": 1},
}


@pytest.mark.parametrize("size", [0, 1, 2, 5, 8])
def test_the_shares_of_a_batch_are_contiguous_and_as_even_as_possible(size):
    batch = range(16, 16 + size)
    for world_size in (1, 2, 3, 7):
        parts = [Share(rank, world_size).of(batch) for rank in range(world_size)]
        assert [place for part in parts for place in part] == list(batch)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes[0] == max(sizes) == Share(0, world_size).largest(size)


@pytest.mark.parametrize("kind", KINDS)
def test_three_processes_read_the_views_that_one_reads(kind):
    """Of 26 samples in batches of 8 the last batch has 2: two processes read none of it."""
    split = Samples(26)
    with loader(split, **KINDS[kind]) as whole:
        expected = batches(whole, epoch=1, start_sample=8)
    found = []
    for rank in range(3):
        with loader(split, share=Share(rank, 3), **KINDS[kind]) as part:
            found.append(batches(part, epoch=1, start_sample=8))
    assert [len(each) for each in found] == [3, 2, 2]
    for number, batch in enumerate(expected):
        parts = [each[number] for each in found if number < len(each)]
        assert_same(parts, [batch])
        assert all(part.lam == batch.lam for part in parts)
        assert sum(part.valid for part in parts) == batch.valid
        if batch.mixed_targets is not None:
            mixed = [part.mixed_targets for part in parts if part.mixed_targets is not None]
            assert torch.equal(torch.cat(mixed), batch.mixed_targets)


def test_windows_and_the_place_to_go_on_are_those_of_one_process():
    with loader(Samples(26)) as whole:
        expected = [
            (window.index, window.size, window.next_sample, window.valid) for window in whole.windows(0, 2)
        ]
    valid = [0] * len(expected)
    for rank in range(3):
        with loader(Samples(26), share=Share(rank, 3)) as part:
            assert (part.batches, part.steps(2)) == (4, 2)
            for number, window in enumerate(part.windows(0, 2)):
                assert (window.index, window.size, window.next_sample) == expected[number][:3]
                valid[number] += window.valid
                assert len(list(window)) == len(window)
    assert valid == [each[3] for each in expected]


@pytest.mark.parametrize(
    ("rank", "train", "expected"),
    [
        (0, False, [(3, True), (3, True), (2, False)]),
        (2, False, [(2, True), (2, True), (1, False)]),
        (0, True, [(3, True), (3, True), (3, True)]),  # two ranks read the last 5: this one as many as ever
        (1, True, [(3, True), (3, True), (2, False)]),
    ],
)
def test_a_part_that_has_as_many_samples_as_ever_is_a_whole_one(rank, train, expected):
    with loader(Samples(21), train=train, share=Share(rank, 3), batch_size=8) as part:
        found = batches(part)
    assert [(batch.size, batch.is_whole) for batch in found] == expected
