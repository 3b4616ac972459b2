"""A planted faulty layer is found, and a healthy network raises no alarm."""

import math
import random

import pytest
import torch

from mptui.errors import DivergedError
from mptui.events import Diagnosed, Recovered
from tests.engine.blots import CLASSES, SIDE
from tests.engine.guards.sick import Gain, assert_finite, trained
from tests.engine.small import build_trainer, config, end, of


class NegativeLog(torch.nn.Module):
    def forward(self, x):
        return torch.log(-x.abs() - 1.0)


class GuardedRoot(torch.nn.Module):
    """Finite forward; the gradient of the branch not taken is NaN."""

    def forward(self, x):
        return torch.where(x > 0, torch.sqrt(x), 0.0)


def layered_net(seed, sick=None):
    """Stack convolutions, norms and activations; `sick` (place, module) is an additional layer among them."""
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = []
    channels = 3
    for _ in range(random.Random(seed).randint(2, 4)):
        layers += [torch.nn.Conv2d(channels, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        channels = 8
    layers += [torch.nn.Flatten(), torch.nn.Linear(8 * SIDE * SIDE, len(CLASSES))]
    if sick is not None:
        layers.insert(*sick)
    return torch.nn.Sequential(*layers)


def planted(seed):
    """Return a network with a faulty layer, the layer's name, and the precision in which it fails."""
    numbers = random.Random(seed)
    kind = numbers.choice(["gain", "weight", "log", "root"])
    place = 1 + 3 * numbers.randrange(2)  # after a convolution
    precision = "fp16" if kind == "gain" else numbers.choice(["fp32", "bf16", "fp16"])
    if kind == "weight":
        model = layered_net(seed)
        with torch.no_grad():
            next(model[place - 1].parameters()).view(-1)[0] = math.nan
        return model, str(place - 1), precision
    layer = {"gain": Gain(10.0 ** numbers.uniform(6, 30)), "log": NegativeLog(), "root": GuardedRoot()}[kind]
    return layered_net(seed, (place, layer)), str(place), precision


def assert_the_sick_layer_is_found(folder, seed):
    model, name, precision = planted(seed)
    # in fp16 a gradient may be the loss scale's fault until the scale is at its floor
    run = config(guards={"max_recoveries": 1}, training={"epochs": 5, "lr": 0.01})
    trainer, events = build_trainer(run, folder, precision=precision, model=model)
    try:
        trainer.train()
    except DivergedError:
        pass
    finally:
        end(trainer)
    assert of(events, Diagnosed)[0].layer == name


def assert_no_alarm(folder, seed):
    precision = random.Random(seed).choice(["fp32", "bf16", "fp16"])
    trainer, events = trained(folder, layered_net(seed), precision=precision, training={"lr": 0.02})
    assert of(events, Diagnosed) == []
    assert of(events, Recovered) == []
    assert_finite(trainer, events)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow), 3, 4, 5])
def test_a_sick_layer_is_found(tmp_path, seed):
    assert_the_sick_layer_is_found(tmp_path, seed)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_healthy_network_raises_no_alarm(tmp_path, seed):
    assert_no_alarm(tmp_path, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(30))
def test_each_of_thirty_sick_layers_is_found(tmp_path, seed):
    assert_the_sick_layer_is_found(tmp_path, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(30))
def test_none_of_thirty_healthy_networks_raises_an_alarm(tmp_path, seed):
    assert_no_alarm(tmp_path, seed)
