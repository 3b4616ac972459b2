import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mptui.data.types import IGNORE
from mptui.registry.tasks import LOSSES
from mptui.tasks.segmentation import Overlap, Segmentation
from mptui.testing import TaskContract
from tests.tasks.batches import masked

CPU = torch.device("cpu")
CLASSES = ("background", "cat", "dog")


def random_masks(images, seed, ignored=0.3, side=6):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(len(CLASSES), (images, side, side), generator=generator)
    masks[torch.rand(masks.shape, generator=generator) < ignored] = IGNORE
    return masks


def random_logits(images, seed, side=6):
    return torch.randn(images, len(CLASSES), side, side, generator=torch.Generator().manual_seed(seed))


def logits_for(predicted):
    """Return logits whose argmax is `predicted`."""
    return F.one_hot(torch.as_tensor(predicted), len(CLASSES)).movedim(-1, 1).float()


class TestSegmentation(TaskContract):
    @pytest.fixture(params=[*((loss, None) for loss in LOSSES), ("focal_dice", [0.2, 1.0, 7.0])], ids=str)
    def task(self, request):
        return Segmentation(CLASSES, *request.param)

    def samples(self, count, seed):
        logits = random_logits(count, seed)
        if seed % 2:
            logits = logits.to(memory_format=torch.channels_last)
        return logits, masked(random_masks(count, seed, ignored=(0.3, 0.97, 0.0)[seed % 3]))


def dice_loss_by_hand(logits, masks, classes):
    """Return the mean over images of 1 - Dice, averaged over the foreground classes in the image's mask."""
    losses = []
    for image, mask in zip(logits.double().softmax(1).numpy(), masks.numpy(), strict=True):
        valid, ratios = mask != IGNORE, []
        for index, name in enumerate(classes):
            if name == "background" or not (mask == index).any():
                continue
            p, truth = image[index][valid], (mask == index)[valid]
            ratios.append((2 * (p * truth).sum() + 1) / (p.sum() + truth.sum() + 1))
        losses.append(1 - np.mean(ratios) if ratios else 0.0)
    return float(np.mean(losses))


@pytest.mark.parametrize("classes", [CLASSES, ("sky", "cat", "dog")])
def test_the_loss_is_cross_entropy_and_dice(classes):
    masks, logits = random_masks(4, seed=1), random_logits(4, seed=2)
    masks[0][masks[0] == 2] = 0  # no dog
    masks[1][masks[1] > 0] = 0  # background only
    batch = masked(masks)
    loss = Segmentation(classes).loss(logits, batch, batch.valid, batch.size)
    expected = F.cross_entropy(logits, masks, ignore_index=IGNORE) + dice_loss_by_hand(logits, masks, classes)
    torch.testing.assert_close(loss, expected)


def test_a_perfect_prediction_has_no_loss_and_a_wrong_one_has():
    masks = random_masks(3, seed=3)
    batch = masked(masks)
    sure = 50 * logits_for(masks.clamp(min=0))
    task = Segmentation(CLASSES)
    assert task.loss(sure, batch, batch.valid, 3) < 1e-4
    assert task.loss(sure.roll(1, dims=1), batch, batch.valid, 3) > 40


def test_ignored_pixels_change_nothing_whatever_is_predicted_there():
    masks, logits = random_masks(3, seed=4), random_logits(3, seed=5)
    batch, task = masked(masks), Segmentation(CLASSES)
    other = torch.where((masks == IGNORE)[:, None], 9 * random_logits(3, seed=6), logits)
    leaf = other.clone().requires_grad_()
    loss = task.loss(leaf, batch, batch.valid, 3)
    torch.testing.assert_close(loss, task.loss(logits, batch, batch.valid, 3))
    loss.backward()
    assert leaf.grad is not None
    assert not leaf.grad.movedim(1, -1)[masks == IGNORE].any()


def test_a_batch_without_a_valid_pixel_is_zero_and_not_nan():
    batch = masked(torch.full((2, 6, 6), IGNORE))
    logits = random_logits(2, seed=0).requires_grad_()
    loss = Segmentation(CLASSES).loss(logits, batch, 1, 2)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()
    metrics = Overlap(CLASSES, CPU)
    metrics.update(random_logits(2, seed=0), batch)
    assert all(math.isnan(value) for value in metrics.compute().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_image_of_ones_does_not_overflow(dtype):
    logits = torch.stack((torch.zeros(1, 640, 640), torch.full((1, 640, 640), 20.0)), dim=1).to(dtype)
    batch = masked(torch.ones(1, 640, 640, dtype=torch.long))
    with torch.autocast("cpu", dtype=dtype):
        loss = Segmentation(("background", "all")).loss(logits, batch, batch.valid, 1)
    assert 0 <= loss < 1e-4


def overlaps_by_hand(predicted, masks):
    valid = masks != IGNORE
    iou, dice = [], []
    for index in range(len(CLASSES)):
        p, truth = (predicted == index)[valid], (masks == index)[valid]
        union, total = (p | truth).sum(), p.sum() + truth.sum()
        iou.append(float((p & truth).sum() / union) if union else None)
        dice.append(float(2 * (p & truth).sum() / total) if total else None)
    return iou, dice, float((predicted == masks)[valid].mean())


@pytest.mark.parametrize("channels_last", [False, True])
def test_overlaps_are_those_of_all_images_together(channels_last):
    masks, logits = random_masks(7, seed=9), random_logits(7, seed=10)
    if channels_last:
        logits = logits.to(memory_format=torch.channels_last)
    metrics = Segmentation(CLASSES).metrics(CPU)
    for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
        metrics.update(logits[part], masked(masks[part]))
    iou, dice, pixel_acc = overlaps_by_hand(logits.argmax(1).numpy(), masks.numpy())
    assert metrics.per_class()["iou"] == pytest.approx(dict(zip(CLASSES, iou, strict=True)))
    assert metrics.per_class()["dice"] == pytest.approx(dict(zip(CLASSES, dice, strict=True)))
    assert metrics.compute() == pytest.approx(
        {"iou": np.mean(iou[1:]), "dice": np.mean(dice[1:]), "miou": np.mean(iou), "pixel_acc": pixel_acc}
    )


@pytest.mark.parametrize(
    ("dtype", "classes"),
    [
        *((torch.int16, classes) for classes in (2, 15, 16, 180, 181, 200)),
        (torch.int64, 16),
        *(pytest.param(torch.int64, each, marks=pytest.mark.slow) for each in (2, 15, 180, 181, 200)),
    ],
)
def test_every_pair_of_classes_has_a_count_of_its_own(classes, dtype):
    true, predicted = torch.meshgrid(torch.arange(-1, classes), torch.arange(classes), indexing="ij")
    logits = torch.zeros(1, classes, *predicted.shape).scatter_(1, predicted[None, None], 1.0)
    masks = torch.where(true < 0, IGNORE, true)[None].to(dtype)
    metrics = Overlap([str(number) for number in range(classes)], CPU)
    for _ in range(2):
        metrics.update(logits, masked(masks))
    assert torch.equal(metrics.state_dict()["confusion"], torch.full((classes, classes), 2))


def test_without_a_background_every_class_is_foreground():
    masks, logits = random_masks(3, seed=9), random_logits(3, seed=10)
    metrics = Overlap(("sky", "cat", "dog"), CPU)
    metrics.update(logits, masked(masks))
    assert metrics.compute()["iou"] == metrics.compute()["miou"]


def test_a_class_in_no_mask_and_no_prediction_is_left_out():
    metrics = Overlap(CLASSES, CPU)
    metrics.update(logits_for([[[0, 0, 1, 1]]]), masked([[[0, 1, 1, 1]]]))
    assert metrics.per_class()["iou"] == {"background": 1 / 2, "cat": 2 / 3, "dog": None}
    assert metrics.compute()["iou"] == 2 / 3
    assert metrics.compute()["miou"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_a_class_only_predicted_counts_as_wrong():
    metrics = Overlap(CLASSES, CPU)
    metrics.update(logits_for([[[0, 0, 1, 2]]]), masked([[[0, 0, 1, 1]]]))
    assert metrics.per_class()["dice"]["dog"] == 0
    assert metrics.compute()["iou"] == 1 / 4


@pytest.mark.parametrize("classes", [3, 300])
def test_of_equal_logits_the_first_class_is_predicted(classes):
    logits = torch.zeros(1, classes, 1, 3)
    logits[0, 1:, 0, 0] = 1.0
    logits[0, -1, 0, 1] = 1.0
    metrics = Overlap([str(number) for number in range(classes)], CPU)
    metrics.update(logits, masked(torch.tensor([[[1, classes - 1, 0]]])))
    assert metrics.compute()["pixel_acc"] == 1


def test_a_pixel_that_is_not_a_number_counts_for_its_own_class_alone():
    logits = logits_for([[[0, 1, 1]]])
    logits[0, :, 0, 0] = math.nan
    metrics = Overlap(CLASSES, CPU)
    metrics.update(logits, masked(torch.tensor([[[0, 1, 1]]])))
    assert metrics.per_class()["iou"] == {"background": 0, "cat": 1, "dog": 0}
