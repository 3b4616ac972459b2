"""The balanced sampler: every class equally often, in an order that depends on seed and epoch alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.data.sampler import EpochOrder
from tests.data.loaders import assert_same, batches, joined, loader
from tests.data.samples import Samples

LABELS = np.array([0] * 42 + [4] * 8 + [7] * 2)


def order(labels, seed=0):
    return EpochOrder(len(labels), 8, True, seed, np.array(labels))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(0, 2**32), st.integers(0, 9))
def test_each_class_is_drawn_equally_often_and_so_is_each_of_its_samples(labels, seed, epoch):
    draws = order(labels, seed).of(epoch)
    assert len(draws) == len(labels) == len(set(draws.tolist()))
    assert np.array_equal(draws, order(labels, seed).of(epoch))
    times = np.bincount(draws % len(labels), minlength=len(labels))
    of_classes = [times[np.array(labels) == label] for label in set(labels)]
    drawn = [int(each.sum()) for each in of_classes]
    assert max(drawn) - min(drawn) <= 1
    assert all(each.max() - each.min() <= 1 for each in of_classes)


def test_epochs_draw_other_samples_in_another_order():
    first, second = (order(LABELS).of(epoch) for epoch in (0, 1))
    assert set(first.tolist()) != set(second.tolist())
    assert np.bincount(LABELS[first % 52])[[0, 4, 7]].tolist() != [42, 8, 2]


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("how", [{"workers": 2}, {"cache": "ram"}, {"cache": "device"}], ids=str)
def test_the_batches_are_the_same_with_workers_with_caches_and_after_a_resume(how, augment):
    with (
        loader(labels_N=LABELS, augment=augment) as plain,
        loader(labels_N=LABELS, augment=augment, **how) as other,
    ):
        expected = batches(plain, epoch=1)
        assert_same(batches(other, epoch=1), expected)
        assert_same(batches(other, epoch=1, start_sample=24), expected[3:])


@pytest.mark.parametrize("changed", [{}, {"names": ("rand",)}], ids=["cut", "changed"])
def test_a_repeated_sample_has_another_view_each_time(changed):
    with loader(Samples(52), labels_N=LABELS, workers=0, **changed) as balanced:
        images, _, indices = joined(batches(balanced))
    places = [place for place, index in enumerate(indices) if index == 51]
    assert len(places) >= 8
    assert len({tuple(images[place].flatten().tolist()) for place in places}) == len(places)
    assert torch.isfinite(images).all()
