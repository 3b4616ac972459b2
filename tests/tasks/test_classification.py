import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.tasks.accuracy import Accuracy
from mptui.tasks.classification import Classification
from tests.tasks.batches import labelled, loss_and_gradient, padded

CPU = torch.device("cpu")


def names(count):
    return [f"class {number}" for number in range(count)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_the_shares_of_a_window_add_up_to_the_whole_batch(sizes, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(sizes), 6, generator=generator)
    targets = torch.randint(6, (sum(sizes),), generator=generator)
    task = Classification(names(6), smoothing)
    assert task.loss_terms == (("label smoothing 0.1",) if smoothing else ())
    parts = [labelled(part) for part in targets.split(sizes)]
    loss, gradient = loss_and_gradient(task, logits, parts, sizes)
    whole_loss, whole_gradient = loss_and_gradient(task, logits, [labelled(targets)], [sum(sizes)])
    torch.testing.assert_close(loss, whole_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_of_one_batch_is_that_of_torch(smoothing):
    logits, targets = torch.randn(9, 5), torch.randint(5, (9,))
    loss = Classification(names(5), smoothing).loss(logits, labelled(targets), 9, 9)
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


def test_padded_rows_count_for_nothing():
    logits, targets = torch.randn(5, 6), torch.randint(6, (5,))
    other = torch.randint(6, (5,))
    logits_padded = torch.cat((logits, torch.full((3, 6), math.nan)))
    task = Classification(names(6), 0.1)
    plain, with_padding = Accuracy(6, CPU), Accuracy(6, CPU)
    for batch, rows in [(labelled(targets), 3), (labelled(targets, mixed_targets=other, lam=0.4), 3)]:
        expected = task.loss(logits, batch, 5, 5)
        plain.update(logits, batch)
        assert torch.equal(task.loss(logits_padded, padded(batch, rows), 5, 5), expected)
        with_padding.update(logits_padded, batch)
    assert with_padding.compute() == plain.compute()


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


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_with_few_classes_the_right_one_is_always_among_five(classes):
    metrics = Accuracy(classes, CPU)
    metrics.update(ranked(*range(1, classes + 1), classes=classes), labelled([0] * classes))
    assert metrics.compute() == {"acc1": 1 / classes, "acc5": 1.0}


@pytest.mark.parametrize(("lam", "expected"), [(0.8, 0.0), (0.2, 1.0)])
def test_a_mixed_sample_counts_as_its_larger_share(lam, expected):
    metrics = Accuracy(10, CPU)
    mixed = torch.zeros(3, dtype=torch.long)
    metrics.update(ranked(1, 1, 1), labelled([4, 5, 6], mixed_targets=mixed, lam=lam))
    assert metrics.compute()["acc1"] == expected


def test_nothing_added_is_nan():
    metrics = Accuracy(10, CPU)
    assert all(math.isnan(value) for value in metrics.compute().values())
    metrics.update(ranked(1), labelled([0]))
    metrics.reset()
    assert all(math.isnan(value) for value in metrics.compute().values())


def test_sums_go_on_from_a_checkpoint():
    metrics, resumed = Accuracy(10, CPU), Accuracy(10, CPU)
    metrics.update(ranked(1, 2, 7), labelled([0] * 3))
    state = metrics.state_dict()
    metrics.update(ranked(1), labelled([0]))
    resumed.load_state_dict(state)
    assert resumed.compute() == {"acc1": 1 / 3, "acc5": 2 / 3}
    resumed.update(ranked(1), labelled([0]))
    assert resumed.compute() == metrics.compute()
