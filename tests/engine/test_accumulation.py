"""Gradients accumulated over a window equal those of one batch, also in the short last window."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mptui.data.batch import Batch
from mptui.data.types import IGNORE
from mptui.errors import DataError
from mptui.events import Step, Warned
from tests.engine.blots import Blot, Scene, Unseen
from tests.engine.small import build_trainer, config, end, mask_net, of, small_net

LR = 0.05
WEIGHTS = [0.3, 5.0, 1.0]


def run_config(accumulate, **training):
    numbers = {"epochs": 1, "accumulate": accumulate, "lr": LR, "schedule": "constant", "weight_decay": 0.0}
    return config(training={**numbers, **training}, data={"augment": "none"})


def net_for(kind):
    return small_net(norm=False) if kind is Blot else mask_net()


def trained(folder, kind, samples, accumulate):
    trainer, events = build_trainer(
        run_config(accumulate), folder, model=net_for(kind), train=samples, kind=kind
    )
    trainer.train()
    end(trainer)
    return trainer.context.model, events


def batches_of(folder, kind, samples):
    """Return the batches of the first epoch, and the task."""
    trainer, _ = build_trainer(run_config(1), folder, train=samples, kind=kind)
    found = [
        Batch(b.images_BCHW.clone(), b.targets.clone(), b.size, b.valid, b.sample_indices.copy())
        for window in trainer.context.job.train_loader.windows(0, 1)
        for b in window
    ]
    end(trainer)
    return found, trainer.context.task


def joined(batches):
    return Batch(
        torch.cat([b.images_BCHW for b in batches]),
        torch.cat([b.targets for b in batches]),
        sum(b.size for b in batches),
        sum(b.valid for b in batches),
        sample_indices=np.concatenate([b.sample_indices for b in batches]),
    )


def by_hand(folder, kind, samples, accumulate, window_loss):
    """Train a plain loop: loss per window from `window_loss`, torch's SGD with momentum."""
    batches, task = batches_of(folder, kind, samples)
    model = copy.deepcopy(net_for(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for first in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        window_loss(model, task, batches[first : first + accumulate]).backward()
        optimizer.step()
    return model


def as_one_batch(model, task, batches):
    whole = joined(batches)
    return task.loss(model(whole.images_BCHW), whole, whole.valid, whole.size)


def mean_of_means(accumulate):
    def loss(model, task, batches):
        return sum(task.loss(model(b.images_BCHW), b, b.valid, b.size) for b in batches) / accumulate

    return loss


@torch.no_grad()
def distance(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((p - q).abs().max()) for p, q in pairs)


@pytest.mark.parametrize("samples", [56, 50], ids=["7 batches", "7 batches, the last of 2"])
@pytest.mark.parametrize("kind", [Blot, Scene], ids=["classification", "masks with ignored pixels"])
def test_seven_batches_by_four_are_a_window_of_four_and_one_of_three(tmp_path, kind, samples):
    model, events = trained(tmp_path / "run", kind, samples, 4)
    assert distance(model, by_hand(tmp_path, kind, samples, 4, as_one_batch)) < 1e-6
    assert [step.samples_seen for step in of(events, Step)] == [32, samples]


@pytest.mark.parametrize("kind", [Blot, Scene], ids=["classification", "masks with ignored pixels"])
def test_the_mean_of_means_is_another_gradient(tmp_path, kind):
    model, _ = trained(tmp_path / "run", kind, 50, 4)
    assert distance(model, by_hand(tmp_path, kind, 50, 4, mean_of_means(4))) > 1e-4


def weighted_by_torch(model, task, batches):
    whole = joined(batches)
    weights = torch.tensor(WEIGHTS[: len(task.classes)])
    return F.cross_entropy(model(whole.images_BCHW), whole.targets, weight=weights, ignore_index=IGNORE)


@pytest.mark.parametrize("cache", ["off", "device"])
@pytest.mark.parametrize("kind", [Blot, Scene], ids=["classification", "masks with ignored pixels"])
def test_a_window_with_class_weights_is_one_batch_of_torch(tmp_path, kind, cache):
    weights = WEIGHTS[:3] if kind is Blot else WEIGHTS[:2]
    run = run_config(4, class_weights=weights, loss="cross_entropy")
    trainer, _ = build_trainer(run, tmp_path / "run", model=net_for(kind), train=50, kind=kind, cache=cache)
    trainer.context.micro_batches.limits["training"] = 3
    trainer.train()
    end(trainer)
    assert distance(trainer.context.model, by_hand(tmp_path, kind, 50, 4, weighted_by_torch)) < 1e-6


def test_the_loss_that_is_told_is_that_of_the_window(tmp_path):
    _, events = trained(tmp_path / "run", Scene, 32, 4)
    batches, task = batches_of(tmp_path, Scene, 32)
    expected = as_one_batch(mask_net(), task, batches)
    assert of(events, Step)[0].loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_window_without_a_valid_pixel_is_left_out(tmp_path):
    trainer, events = build_trainer(run_config(1), tmp_path, model=mask_net(), train=64, kind=Unseen)
    with pytest.raises(DataError, match="no step was taken"):
        trainer.train()
    end(trainer)
    assert distance(trainer.context.model, mask_net()) == 0.0
    assert not of(events, Step)
    assert [w.code for w in of(events, Warned)] == ["empty_batch"]  # one per epoch
