"""Parity: how often its verdict is right, over simulated seeds and images with a known difference."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
import torch

from mptui.data.batch import Batch
from mptui.lab.measure import noise
from mptui.lab.measure.noise import TOLERANCE, SumsByImage, between_seeds, difference
from mptui.tasks.classification import Classification
from mptui.tasks.segmentation import Segmentation

TRIALS = 200


def trials(truth, seeds, images, *, flips=0.02, spread=0.0, shared=0.0, count=TRIALS):
    """Return comparisons of simulated trainings.

    Args:
        truth: The precision's accuracy minus FP32's, points.
        seeds: Number of seeds.
        images: Number of validation images.
        flips: Share of the images that turn from right to wrong or back without a difference.
        spread: Standard deviation of the difference between seeds, points.
        shared: Share of the images that turn in all seeds, if in any.
    """
    chance = np.random.default_rng(seeds * images)
    for _ in range(count):
        by_seed_S1 = (truth + spread * chance.normal(size=(seeds, 1))) / 100
        draw_SN = np.where(
            chance.random(images) < shared, chance.random(images), chance.random((seeds, images))
        )
        better_S1, worse_S1 = flips / 2 + by_seed_S1.clip(0), flips / 2 - by_seed_S1.clip(None, 0)
        by_image_SN = (draw_SN < better_S1).astype(float) - (draw_SN > 1 - worse_S1)
        yield difference((0.9 + by_image_SN.mean(1)).tolist(), [0.9] * seeds, by_image_SN)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize("images", [32, 1000])
def test_no_difference_is_called_one_and_no_point_is_called_none(seeds, images):
    for flips, shared in product((0.0, 0.02), (0.0, 1.0)):
        same, worse = (
            [found.verdict for found in trials(truth, seeds, images, flips=flips, shared=shared)]
            for truth in (0.0, -1.0)
        )
        assert same.count("differs") <= 0.05 * TRIALS
        assert worse.count("agrees") <= 0.05 * TRIALS
        assert seeds > 1 or {*same, *worse} == {"undecided"}


def test_enough_seeds_and_images_decide():
    assert all(found.verdict == "agrees" for found in trials(0.0, 5, 40_000, flips=0.0005, count=20))
    assert all(found.verdict == "differs" for found in trials(-1.0, 5, 10_000, spread=0.1, count=20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "spread", "shared"),
    [
        (2, 0.0, 0.0),
        (2, 0.0, 0.5),
        (2, 0.5, 1.0),
        (2, 1.5, 0.0),
        (2, 3.0, 0.5),
        (3, 0.0, 0.0),
        (3, 0.7, 0.5),
        (5, 0.0, 0.0),
        (5, 1.5, 1.0),
        (10, 0.0, 0.0),
        (10, 0.7, 0.5),
    ],
)
@pytest.mark.parametrize("truth", [0.0, 0.5])
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds, spread, shared, truth):
    """In 92 to 98 %, within two standard errors of such a share of 1,000: 1.7 and 0.9 points."""
    count, held, wrong = 5 * TRIALS, 0, 0
    for found in trials(truth, seeds, 2000, flips=0.1, spread=spread, shared=shared, count=count):
        held += found.low <= truth <= found.high
        wrong += found.verdict == ("agrees" if truth > TOLERANCE else "differs")
    few, most, mistaken = (2 * sqrt(share * (1 - share) / count) for share in (0.92, 0.98, 0.05))
    assert 0.92 - few <= held / count <= 0.98 + most
    assert wrong / count <= 0.05 + mistaken


def test_what_would_decide_decides_mostly():
    (found,) = trials(0.5, 10, 2000, count=1, spread=0.3, shared=0.5)
    assert found.verdict == "undecided"
    assert found.needed()
    for seeds, images in found.needed():
        again = [each.verdict for each in trials(found.mean, seeds, images, spread=0.3, shared=0.5, count=20)]
        assert again.count("differs") >= 5


def test_with_one_seed_the_noise_is_unknown():
    found = difference([0.902], [0.9], np.full((1, 5000), 0.002))
    assert (found.low, found.high, found.verdict) == (None, None, "undecided")
    assert found.mean == pytest.approx(0.2)
    assert between_seeds([0.9]) is None


def test_the_interval_over_seeds_is_students():
    each = np.array([0.1, 0.3, 0.2, 0.6]) / 100
    found = difference(each.tolist(), [0.0] * 4, np.tile(each[:, None], 10_000))
    half = 3.182446 * 100 * np.std(each, ddof=1) / sqrt(4)
    assert (found.low, found.high) == pytest.approx((0.3 - half, 0.3 + half))


def images_of(outputs, targets):
    rows = len(targets)
    return Batch(torch.zeros(rows, 3, 4, 4), targets, rows, rows, np.arange(rows)), outputs


def test_the_values_of_an_accuracy_are_its_right_images():
    torch.manual_seed(0)
    logits, targets = torch.randn(30, 4), torch.randint(0, 4, (30,))
    sums = SumsByImage(Classification(("a", "b", "c", "d"), 0.0), torch.device("cpu"))
    for first in (0, 20):
        batch, outputs = images_of(logits[first : first + 20], targets[first : first + 20])
        sums.add(outputs, batch)
    assert sums.values("acc1") == pytest.approx((logits.argmax(1) == targets).double().numpy())
    assert sums.values("f1").size == 0


def test_of_many_images_with_large_sums_groups_are_kept(monkeypatch):
    monkeypatch.setattr(noise, "UNITS", 4)
    torch.manual_seed(0)
    targets = torch.randint(0, 9, (10, 4, 4))
    predicted = torch.where(torch.rand(10, 4, 4) < 0.8, targets, 0)
    outputs = torch.nn.functional.one_hot(predicted, 9).movedim(-1, 1).float()
    task = Segmentation(tuple("abcdefghi"))

    def overlap(rows):
        metrics = task.metrics(torch.device("cpu"))
        batch, chosen = images_of(outputs[rows], targets[rows])
        metrics.update(chosen, batch)
        return metrics.compute()["iou"]

    sums = SumsByImage(task, torch.device("cpu"))
    batch, _ = images_of(outputs, targets)
    sums.add(outputs, batch)
    without = [overlap([row for row in range(10) if row % 4 != group]) for group in range(4)]
    assert sums.values("iou") == pytest.approx(4 * overlap(range(10)) - 3 * np.array(without))


def test_the_values_of_an_overlap_vary_as_it_does_between_sets_of_images():
    torch.manual_seed(0)
    chance = np.random.default_rng(0)

    def measured():
        """Masks of 60 images, of which each is predicted as well as its own quality says."""
        targets = (torch.rand(60, 4, 4) < 0.5).long()
        right = torch.rand(60, 4, 4) < torch.from_numpy(chance.uniform(0.4, 1.0, (60, 1, 1)))
        predicted = torch.where(right, targets, 1 - targets)
        task = Segmentation(("background", "thing"))
        sums, metrics = SumsByImage(task, torch.device("cpu")), task.metrics(torch.device("cpu"))
        batch, outputs = images_of(torch.nn.functional.one_hot(predicted, 2).movedim(-1, 1).float(), targets)
        sums.add(outputs, batch)
        metrics.update(outputs, batch)
        return metrics.compute()["iou"], sums.values("iou").std() / sqrt(60)

    found = [measured() for _ in range(15)]
    spread = np.std([iou for iou, _ in found])
    assert np.mean([error for _, error in found]) == pytest.approx(spread, rel=0.35)
