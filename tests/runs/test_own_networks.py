"""A person's network is trained as a plain loop trains it, whatever it does with its own parts."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mptui import resume, train
from mptui.engine.checkpoint.files import read_newest
from tests.made.runs import QUIET
from tests.toys.training import bits

slow = partial(pytest.param, marks=pytest.mark.slow)

SMALL: dict[str, Any] = {
    "data.image_size": 16,
    "data.samples": 24,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.ema_decay": 0.9,
    "training.optimizer": "adamw",
    "hardware.device": "cpu",
    **QUIET,
}


class Bounded(nn.Conv2d):
    """The norms of its filters are at most 1."""

    def bounded(self):
        return torch.renorm(self.weight.detach(), p=2, dim=0, maxnorm=1.0)


class InPlace(Bounded):
    def forward(self, images):
        with torch.no_grad():
            self.weight.copy_(self.bounded())
        return super().forward(images)


class Exchanged(Bounded):
    def forward(self, images):
        self.weight.data = torch.empty_like(self.weight).copy_(self.bounded())  # of the same layout
        return super().forward(images)


class Net(nn.Module):
    def __init__(self, num_classes, first=InPlace):
        super().__init__()
        torch.manual_seed(0)
        self.conv = first(3, 4, 3, 2, 1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).relu().mean((2, 3)))


class Exchanging(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes, Exchanged)


class Kept(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.norm.eval()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(network, **settings):
    run = train(network, name=network.__name__, **{**SMALL, **settings})
    return read_newest(run.directory / "checkpoints")[0].tensors, run.final


@pytest.mark.parametrize("channels_last", [slow(False), True])
def test_a_network_that_exchanges_the_memory_of_its_weights_is_trained(channels_last):
    layout = {"speed.channels_last": channels_last, "epochs": 2}
    (tensors, final), (expected, expected_final) = trained(Exchanging, **layout), trained(Net, **layout)
    assert bits(tensors) == bits(expected)
    assert final == expected_final


def test_parts_that_a_network_has_put_into_evaluation_mode_stay_so():
    tensors, _ = trained(Kept, epochs=1)
    assert not tensors["model"]["norm.running_mean"].any()


class Drawing(Net):
    """Draws from the generators of Python and NumPy, in its `__init__` and in each step."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.factor = nn.Parameter(torch.tensor([random.random(), float(np.random.rand())]))

    def forward(self, images):
        noise = random.random() + float(np.random.rand()) if self.training else 0.0
        return super().forward(images) * (self.factor.sum() + noise)


def test_random_numbers_of_a_network_depend_on_seed_and_step_alone():
    settings = {**SMALL, "training.schedule": "constant", "training.warmup_epochs": 0.0}
    whole = train(Drawing, name="whole", max_steps=4, **settings).directory
    parts = train(Drawing, name="parts", max_steps=2, **settings).directory
    random.seed(99)
    np.random.seed(99)
    resume(parts, max_steps=4)
    saved, again = (read_newest(run / "checkpoints")[0].tensors for run in (whole, parts))
    assert bits(again) == bits(saved)
