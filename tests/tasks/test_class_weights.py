from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mptui.config.schema import RunConfig, TrainingConfig
from mptui.data.types import IGNORE
from mptui.errors import ConfigError
from mptui.registry.tasks import LOSSES
from mptui.tasks.build_task import build_task
from mptui.tasks.classification import Classification
from mptui.tasks.segmentation import Segmentation
from tests.tasks.batches import labelled, masked

CLASSES = ("cat", "dog", "yak")
WEIGHTS = [0.2, 1.0, 7.0]


def window_loss(task, logits, batches):
    """Return the loss of a window by micro-batches."""
    targets = [batch.targets for batch in batches]
    window: Any = SimpleNamespace(
        batches=len(batches), targets=targets.__getitem__, valid=sum(batch.valid for batch in batches)
    )
    weight, size = task.window_weight(window), sum(batch.size for batch in batches)
    parts = logits.split([batch.size for batch in batches])
    return sum(task.loss(part, batch, weight, size) for part, batch in zip(parts, batches, strict=True))


@pytest.mark.parametrize("sizes", [[8], [3, 4, 1]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_weighted_window_is_as_one_batch_of_torch(sizes, smoothing):
    logits, targets = torch.randn(8, 3), torch.randint(3, (8,))
    task = Classification(CLASSES, smoothing, WEIGHTS)
    loss = window_loss(task, logits, [labelled(part) for part in targets.split(sizes)])
    weights = torch.tensor(WEIGHTS)
    expected = F.cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)


def test_a_mixed_window_is_divided_by_the_weights_of_both_labels():
    logits, targets = torch.randn(8, 3), torch.randint(3, (8,))
    parts = [
        labelled(part, mixed_targets=part.roll(1, 0), lam=lam)
        for part, lam in zip(targets.split(4), (0.7, 0.2), strict=True)
    ]
    loss = window_loss(Classification(CLASSES, 0.1, WEIGHTS), logits, parts)
    lams, mixed = torch.tensor([0.7] * 4 + [0.2] * 4), torch.cat([part.mixed_targets for part in parts])
    weights = torch.tensor(WEIGHTS)
    options: dict[str, Any] = {"weight": weights, "label_smoothing": 0.1, "reduction": "none"}
    sums = lams * F.cross_entropy(logits, targets, **options)
    sums += (1 - lams) * F.cross_entropy(logits, mixed, **options)
    shares = lams * weights[targets] + (1 - lams) * weights[mixed]
    torch.testing.assert_close(loss, sums.sum() / shares.sum())


@pytest.mark.parametrize("sizes", [[4], [1, 3]])
def test_weighted_pixels_are_as_one_batch_of_torch(sizes):
    logits, masks = torch.randn(4, 3, 5, 5), torch.randint(-1, 3, (4, 5, 5))
    batches = [masked(part) for part in masks.split(sizes)]
    loss = window_loss(Segmentation(CLASSES, "cross_entropy", WEIGHTS), logits, batches)
    expected = F.cross_entropy(logits, masks, weight=torch.tensor(WEIGHTS), ignore_index=IGNORE)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_losses_of_masks_are_sums_of_their_parts(weights):
    logits, masks = torch.randn(4, 3, 5, 5), torch.randint(-1, 3, (4, 5, 5))
    parts = [masked(part) for part in masks.split(2)]
    found = {name: window_loss(Segmentation(CLASSES, name, weights), logits, parts) for name in LOSSES}
    p = logits.softmax(1).gather(1, masks.clamp(min=0)[:, None])[:, 0]
    shares = torch.tensor(weights or [1.0] * 3)[masks] * (masks != IGNORE)
    torch.testing.assert_close(found["focal"], (-((1 - p) ** 2) * p.log() * shares).sum() / shares.sum())
    torch.testing.assert_close(found["cross_entropy"], (-p.log() * shares).sum() / shares.sum())
    assert 0 < found["dice"] < 1
    torch.testing.assert_close(found["cross_entropy_dice"], found["cross_entropy"] + found["dice"])
    torch.testing.assert_close(found["focal_dice"], found["focal"] + found["dice"])


def test_balanced_weights_give_each_class_the_same_share():
    training = TrainingConfig(class_weights="balanced")
    task = build_task("classification", CLASSES, training, counts=[30, 0, 10])
    logits, targets = torch.randn(40, 3), torch.tensor([0] * 30 + [2] * 10)
    loss = window_loss(task, logits, [labelled(targets)])
    each = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(loss, (each[:30].mean() + each[30:].mean()) / 2)


@pytest.mark.parametrize(("asked", "counts"), [([1.0, 2.0], [1, 1, 1]), ("balanced", [])])
def test_weights_that_fit_no_classes_are_refused(asked, counts):
    with pytest.raises(ConfigError, match=r"^training\.class_weights "):
        build_task("segmentation", CLASSES, TrainingConfig(class_weights=asked), counts)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [-1.0], "equal"])
def test_weights_are_above_0(weights):
    with pytest.raises(ValueError, match="class_weights"):
        RunConfig.model_validate({"training": {"class_weights": weights}})
