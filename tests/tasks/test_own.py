"""A task of a person's own: the loss of a window does not depend on its micro-batches, nor do the metrics."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mptui.errors import ConfigError, OwnCodeError
from mptui.registry import own_code
from mptui.tasks.classification import Classification
from mptui.tasks.own_loss import build_own_task
from mptui.testing import TaskContract
from tests.tasks.batches import labelled

CPU = torch.device("cpu")


class Weighted(torch.nn.Module):
    """Cross-entropy with weights of the classes: one loss a sample."""

    primary: str | None = "right"
    weight: torch.Tensor

    def __init__(self, num_classes):
        super().__init__()
        self.register_buffer("weight", torch.arange(1.0, num_classes + 1))

    def forward(self, outputs, targets):
        return cross_entropy(outputs, targets, reduction="none") * self.weight[targets]

    def metrics(self, outputs, targets):
        return {"highest": outputs.amax(dim=1), "right": (outputs.argmax(dim=1) == targets).float().mean()}


class NoPrimary(Weighted):
    primary = None


@pytest.fixture
def task(monkeypatch):
    def build(code):
        monkeypatch.setitem(own_code._given, "mine:Task", code)
        return build_own_task("mine:Task", Classification(["a", "b", "c"], 0.0), 3)

    return build


@pytest.fixture(name="build")
def _build(task):
    return task


class TestOwn(TaskContract):
    @pytest.fixture
    def task(self, build):
        return build(Weighted)

    def samples(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        return torch.randn(count, 3, generator=numbers), labelled(
            torch.randint(3, (count,), generator=numbers)
        )


def test_one_loss_a_sample_is_averaged(task):
    outputs, targets = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 2])
    loss = task(Weighted).loss(outputs, labelled(targets), 7, 7)
    assert loss == pytest.approx(float(Weighted(3)(outputs, targets).mean()))


def test_padding_and_the_other_label_of_mixed_images_count_as_they_should(task):
    learnt = task(lambda outputs, targets: cross_entropy(outputs, targets))
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 0])
    batch = labelled(targets)
    batch.size = 3
    batch.mixed_targets, batch.lam = targets.roll(1), 0.25
    one, other = cross_entropy(outputs[:3], targets[:3]), cross_entropy(outputs[:3], targets.roll(1)[:3])
    assert learnt.loss(outputs, batch, 3, 3) == pytest.approx(float(0.25 * one + 0.75 * other))


def test_metrics_are_means_over_all_samples_the_primary_one_first(task):
    outputs, targets = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 2])
    metrics = task(Weighted).metrics(CPU)
    metrics.update(outputs, labelled(targets))
    right = (outputs.argmax(dim=1) == targets).float().mean()
    expected = {"right": float(right), "highest": float(outputs.amax(dim=1).mean())}
    assert metrics.compute() == pytest.approx(expected)
    assert list(metrics.compute()) == ["right", "highest"]


def test_a_skipped_step_adds_nothing_to_the_training_metrics(task):
    metrics = task(Weighted).metrics(CPU, training=True)
    metrics.update(torch.tensor([[1.0, 0, 0]]), labelled(torch.tensor([0])))
    metrics.update(torch.tensor([[torch.nan, 0, 0]]), labelled(torch.tensor([0])))
    assert metrics.compute() == {"right": 1.0, "highest": 1.0}


def test_without_metrics_those_of_the_data_are_measured(task):
    learnt = task(torch.nn.CrossEntropyLoss)
    assert learnt.primary == "acc1"
    assert isinstance(learnt.metrics(CPU), type(Classification(["a"], 0.0).metrics(CPU)))


def test_a_complete_task_is_used_as_it_is(task):
    class Mine(Classification):
        def __init__(self, num_classes):
            super().__init__(["x"] * num_classes, 0.0)

    assert type(task(Mine)) is Mine


class Margin(torch.nn.Module):
    """A loss with a parameter to learn."""

    def __init__(self):
        super().__init__()
        self.margin = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, outputs, targets):
        return cross_entropy(outputs * self.margin, targets)


class HoldsOne:
    """A loss that keeps such a module as an attribute."""

    def __init__(self):
        self.inner = Margin()

    def loss(self, outputs, targets):
        return self.inner(outputs, targets)


@pytest.mark.parametrize(("code", "named"), [(Margin, "margin"), (HoldsOne, r"inner\.margin")])
def test_a_loss_with_parameters_to_learn_is_refused_and_names_them(task, code, named):
    with pytest.raises(ConfigError, match=f"parameters of a loss are not trained: {named}"):
        task(code)


def test_a_frozen_parameter_of_a_loss_is_a_constant(task):
    def frozen():
        loss = Margin()
        loss.requires_grad_(False)
        return loss

    learnt = task(frozen())
    assert torch.isfinite(learnt.loss(torch.randn(2, 3), labelled(torch.tensor([0, 1])), 2, 2))


def test_what_is_no_loss_is_refused(task):
    with pytest.raises(ConfigError, match="none is the primary one"):
        task(NoPrimary)
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(OwnCodeError, match=r"the loss of 4 samples is a tensor \[4, 3\]"):
        task(lambda outputs, targets: outputs).loss(outputs, labelled(targets), 4, 4)
    with pytest.raises(OwnCodeError, match="takes 0 positional arguments but 2 were given"):
        task(lambda: 0).loss(outputs, labelled(targets), 4, 4)
