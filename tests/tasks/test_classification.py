import pytest
import torch
import torch.nn.functional as F

from mptui.tasks.classification import Accuracy, Classification
from mptui.testing import TaskContract
from tests.tasks.batches import labelled

CPU = torch.device("cpu")


def names(count):
    return [f"class {number}" for number in range(count)]


class TestClassification(TaskContract):
    @pytest.fixture(params=[(0.0, None), (0.1, None), (0.1, [0.2, 1.0, 7.0, 1.0, 3.0, 1.0])], ids=str)
    def task(self, request):
        return Classification(names(6), *request.param)

    def samples(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        logits = torch.randn(count, 6, generator=numbers)
        targets, others = (torch.randint(6, (count,), generator=numbers) for _ in range(2))
        mixed = {"mixed_targets": others, "lam": 0.1 * seed} if seed % 2 else {}
        return logits, labelled(targets, **mixed)


class TestTwoClasses(TestClassification):
    @pytest.fixture
    def task(self):
        return Classification(("cat", "dog"), 0.0)

    def samples(self, count, seed):
        logits, batch = super().samples(count, seed)
        return logits[:, :2], labelled(batch.targets % 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_of_one_batch_is_that_of_torch(smoothing):
    logits, targets = torch.randn(9, 5), torch.randint(5, (9,))
    task = Classification(names(5), smoothing)
    loss = task.loss(logits, labelled(targets), 9, 9)
    assert task.loss_terms == ((f"label smoothing {smoothing:g}",) if smoothing else ())
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets, label_smoothing=smoothing))


def test_a_mixed_batch_is_learnt_by_its_shares():
    logits, first, second = torch.randn(8, 5), torch.randint(5, (8,)), torch.randint(5, (8,))
    batch = labelled(first, mixed_targets=second, lam=0.3)
    loss = Classification(names(5), 0.1).loss(logits, batch, 8, 8)
    shares = 0.3 * F.one_hot(first, 5) + 0.7 * F.one_hot(second, 5)
    expected = -((0.9 * shares + 0.1 / 5) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_logits_are_summed_in_float32(dtype):
    logits = torch.zeros(4096, 100, dtype=dtype)
    logits[:, 0] = 30.0
    targets = torch.ones(4096, dtype=torch.long)
    loss = Classification(names(100), 0.0).loss(logits, labelled(targets), 1, 1)  # sum 122,880
    torch.testing.assert_close(loss, torch.tensor(4096 * 30.0), rtol=1e-4, atol=0)


def ranked(*ranks, classes=10):
    """Return logits with class 0 at each of `ranks`, from 1."""
    logits = torch.arange(classes, 0, -1.0).repeat(len(ranks), 1)
    for row, rank in zip(logits, ranks, strict=True):
        row[0] = classes - rank + 1.5
        row[1:] = torch.arange(classes - 1, 0, -1.0) + (torch.arange(1, classes) < rank)
    return logits


def test_accuracy_counts_the_first_and_the_first_five():
    metrics = Classification(names(10), 0.0).metrics(CPU, training=True)
    metrics.update(ranked(1, 1, 2, 5), labelled([0] * 4))
    metrics.update(ranked(6, 10, 1, 5), labelled([0] * 4))
    assert metrics.compute() == {"acc1": 3 / 8, "acc5": 6 / 8}
    assert metrics.per_class() == {}


@pytest.mark.parametrize("classes", [1, 2, 5, 6])
def test_five_of_so_few_classes_are_no_metric(classes):
    metrics = Accuracy(classes, CPU)
    metrics.update(ranked(*range(1, classes + 1), classes=classes), labelled([0] * classes))
    assert metrics.compute() == {"acc1": 1 / classes} | ({"acc5": 5 / 6} if classes > 5 else {})


@pytest.mark.parametrize(("lam", "expected"), [(0.8, 0.0), (0.2, 1.0)])
def test_a_mixed_sample_counts_as_its_larger_share(lam, expected):
    metrics = Accuracy(10, CPU)
    mixed = torch.zeros(3, dtype=torch.long)
    metrics.update(ranked(1, 1, 1), labelled([4, 5, 6], mixed_targets=mixed, lam=lam))
    assert metrics.compute()["acc1"] == expected
