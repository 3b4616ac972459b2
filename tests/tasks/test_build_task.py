import pytest
import torch
import torch.nn.functional as F

from mptui.config.schema import TrainingConfig
from mptui.errors import ConfigError
from mptui.registry.tasks import TASKS
from mptui.tasks.build_task import build_task
from tests.tasks.batches import labelled


def test_classification_takes_its_classes_and_its_smoothing():
    task = build_task("classification", ["cat", "dog"], TrainingConfig(label_smoothing=0.2))
    assert task.primary == "acc1"
    logits, targets = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    expected = F.cross_entropy(logits, targets, label_smoothing=0.2)
    torch.testing.assert_close(task.loss(logits, labelled(targets), 4, 4), expected)
    metrics = task.metrics(torch.device("cpu"))
    metrics.update(logits, labelled(targets))
    assert {*metrics.compute(), "acc5"} == set(TASKS["classification"].metrics)
    assert list(metrics.per_class()["f1"]) == ["cat", "dog"]


def test_the_primary_metric_is_one_that_the_data_has():
    training = TrainingConfig(primary_metric="auroc")
    assert build_task("classification", ["cat", "dog"], training).primary == "auroc"
    with pytest.raises(ConfigError, match='"auroc": this data has no such metric'):
        build_task("classification", ["cat", "dog", "yak"], training)


def test_segmentation_names_its_classes():
    task = build_task("segmentation", ["background", "cat"], TrainingConfig())
    assert task.primary == "iou"
    metrics = task.metrics(torch.device("cpu"))
    assert list(metrics.per_class()["iou"]) == ["background", "cat"]
    assert set(metrics.compute()) == set(TASKS["segmentation"].metrics)
