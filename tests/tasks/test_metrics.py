"""The metrics of classes against torchmetrics, in random batches of random processes."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torchmetrics.functional import classification as theirs

from mptui.data.types import IGNORE
from mptui.tasks.classification import ClassMetrics, auroc
from mptui.tasks.segmentation import Overlap
from tests.tasks.batches import labelled, masked

CPU = torch.device("cpu")
CASES = 30


def names(count):
    return [f"class {number}" for number in range(count)]


def merged(states):
    """Return the state of several processes together."""
    return {
        name: torch.cat([s[name] for s in states]) if name == "scores" else sum(s[name] for s in states)
        for name in states[0]
    }


def updated(new, logits, batches, generator):
    """Update metrics of one to three processes with the batches; return metrics of their merged state."""
    processes = [new() for _ in range(int(torch.randint(1, 4, (), generator=generator)))]
    parts = logits.split([batch.size for batch in batches])
    for number, (part, batch) in enumerate(zip(parts, batches, strict=True)):
        processes[number % len(processes)].update(part, batch)
    whole = new()
    whole.load_state_dict(merged([each.state_dict() for each in processes]))
    return whole


def by_class(metrics, name, present):
    found = list(metrics.per_class()[name].values())
    assert [value is not None for value in found] == present.tolist()
    return [value for value in found if value is not None]


def test_classification_is_as_in_torchmetrics():
    generator = torch.Generator().manual_seed(0)
    for _ in range(CASES):
        count, size = (int(torch.randint(low, 40, (), generator=generator)) for low in (2, 1))
        count = 2 + count % 7
        # few levels, so that scores are equal; and skewed, so that classes are absent
        logits = torch.randn(size, count, generator=generator).mul(4).round() / 4
        logits += torch.arange(count) / 1024  # no ties within a sample
        targets = (torch.rand(size, generator=generator) ** 2 * count).long()
        batches = [labelled(part) for part in targets.split(1 + size // 3)]
        metrics = updated(partial(ClassMetrics, names(count), CPU), logits, batches, generator)
        found, confusion = metrics.compute(), metrics.confusion()
        expected = theirs.multiclass_confusion_matrix(logits, targets, count, validate_args=False)
        assert torch.equal(confusion, expected)
        options: dict[str, Any] = {"num_classes": count, "validate_args": False}
        if count > 5:
            acc5 = theirs.multiclass_accuracy(logits, targets, average="micro", top_k=5, **options)
            assert found["acc5"] == pytest.approx(float(acc5), abs=1e-6)
        assert found["acc1"] == pytest.approx(float((logits.argmax(1) == targets).float().mean()), abs=1e-6)
        present, true = (expected.sum(0) + expected.sum(1)) > 0, expected.sum(1) > 0
        for name in ("precision", "recall", "f1"):
            function = getattr(theirs, f"multiclass_{name}{'_score' if name == 'f1' else ''}")
            each = function(logits, targets, average="none", **options)
            assert by_class(metrics, name, present) == pytest.approx(each[present].tolist(), abs=1e-6)
            macro = float(function(logits, targets, average="macro", **options))
            assert found[f"macro_{name}"] == pytest.approx(macro, abs=1e-6)
            if name == "recall":
                assert found["balanced_accuracy"] == pytest.approx(float(each[true].mean()), abs=1e-6)
        if count == 2 and len(set(targets.tolist())) == 2:
            # as ranks: those of its sigmoid may be equal where the scores are not
            scores = (logits[:, 1] - logits[:, 0]).unique(return_inverse=True)[1] / size
            area = theirs.binary_auroc(scores, targets, validate_args=False)
            assert found["auroc"] == pytest.approx(float(area), abs=1e-6)


def test_the_area_under_the_curve_is_as_in_torchmetrics():
    generator = torch.Generator().manual_seed(2)
    for _ in range(CASES):
        size, levels = (int(torch.randint(2, 60, (), generator=generator)) for _ in range(2))
        # few levels, so that scores are equal
        scores = torch.randint(levels, (size,), generator=generator) / levels
        targets = (torch.rand(size, generator=generator) < torch.rand((), generator=generator)).long()
        targets[:2] = torch.tensor([0, 1])  # of one kind alone there is no area
        area = theirs.binary_auroc(scores, targets, validate_args=False)
        assert auroc(torch.stack((scores, targets), dim=1).numpy()) == pytest.approx(float(area), abs=1e-6)


def test_segmentation_is_as_in_torchmetrics():
    generator = torch.Generator().manual_seed(1)
    for _ in range(CASES):
        count, images = (int(torch.randint(2, 6, (), generator=generator)) for _ in range(2))
        logits = torch.randn(images, count, 5, 4, generator=generator)
        targets = (torch.rand(images, 5, 4, generator=generator) ** 3 * count).long()
        targets[torch.rand(targets.shape, generator=generator) < 0.2] = IGNORE
        batches = [masked(part) for part in targets.split(2)]
        metrics = updated(partial(Overlap, names(count), CPU), logits, batches, generator)
        found = metrics.compute()
        options: dict[str, Any] = {"num_classes": count, "ignore_index": IGNORE, "validate_args": False}
        confusion = theirs.multiclass_confusion_matrix(logits, targets, **options)
        assert torch.equal(metrics.confusion(), confusion)
        present = (confusion.sum(0) + confusion.sum(1)) > 0
        for name, function in (
            ("iou", theirs.multiclass_jaccard_index),
            ("dice", theirs.multiclass_f1_score),
        ):
            each = function(logits, targets, average="none", **options)[present]
            assert by_class(metrics, name, present) == pytest.approx(each.tolist(), abs=1e-6)
            assert found[name] == pytest.approx(float(each.mean()), abs=1e-6)
        micro = theirs.multiclass_accuracy(logits, targets, average="micro", **options)
        assert found["pixel_acc"] == pytest.approx(float(micro), abs=1e-6)


def test_a_class_without_samples_or_predictions_is_left_out_of_means():
    metrics = ClassMetrics(("cat", "dog", "yak", "emu"), CPU)
    logits = torch.eye(4)[[0, 0, 2, 1]]  # cat, cat, yak, dog
    metrics.update(logits, labelled([0, 0, 0, 1]))
    assert metrics.per_class()["recall"] == {"cat": 2 / 3, "dog": 1, "yak": 0, "emu": None}
    assert metrics.per_class()["precision"] == {"cat": 1, "dog": 1, "yak": 0, "emu": None}
    found = metrics.compute()
    assert found["macro_recall"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)  # there is no yak to be found
    metrics.reset()
    assert all(math.isnan(value) for value in metrics.compute().values())
    assert metrics.per_class()["recall"] == dict.fromkeys(("cat", "dog", "yak", "emu"))


def test_scores_that_say_nothing_of_the_target_have_half_the_area():
    assert auroc(torch.tensor([[1.0, 0], [1, 1], [1, 0]]).numpy()) == 0.5
    assert math.isnan(auroc(torch.tensor([[math.nan, 0.0], [1, 1]]).numpy()))
    assert math.isnan(auroc(torch.tensor([[0.0, 1], [1, 1]]).numpy()))


def test_very_many_classes_have_no_confusion_matrix_and_all_else():
    metrics = ClassMetrics(names(5000), CPU)
    logits = torch.zeros(3, 5000)
    logits[:, 4321] = 1
    metrics.update(logits, labelled([4321, 4321, 7]))
    assert metrics.confusion() is None
    assert metrics.per_class()["precision"]["class 4321"] == 2 / 3
