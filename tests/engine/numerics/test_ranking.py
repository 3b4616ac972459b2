"""A faulty layer is ranked first in any network; a healthy network raises no alarm."""

import pytest
import torch
from torch import nn

from mptui.engine.numerics import Probe
from mptui.engine.spectrum import rank
from tests.engine.numerics.networks import CPU, Gain, Gate, look_at, network

SEEDS = range(3)
PRECISIONS = {"fp32": None, "bf16": None, "fp16": 1024.0}
SICK = {"gain 1e5": lambda: Gain(1e5), "gain 1e-7": lambda: Gain(1e-7), "saturated softmax": lambda: Gate(8)}


def check_sick(seed: int, sick: str, precision: str) -> None:
    model, place = network(seed, SICK[sick]())
    ranking = look_at(model, seed, precision=precision, scale=PRECISIONS[precision])
    worst = ranking.layers[0]
    assert worst.name == (f"{place}.softmax" if sick == "saturated softmax" else place), (seed, worst)
    assert worst.fault == ("overflow" if sick == "gain 1e5" else "underflow")
    assert worst.part == "forward"


def check_healthy(seed: int, precision: str) -> None:
    model, _ = network(seed)
    ranking = look_at(model, seed, precision=precision, scale=PRECISIONS[precision])
    assert not [layer for layer in ranking.layers if layer.fault], seed
    assert ranking.best is not None
    if precision == "fp16":  # what fp16 has rounded to zero is unknown
        assert ranking.best.lost is None
        assert ranking.best.scale >= 1024
    else:
        assert ranking.best.lost is not None
        assert ranking.best.lost < 0.01


@pytest.mark.parametrize("sick", SICK)
def test_the_sick_layer_comes_first_in_every_network(sick):
    for seed in SEEDS:
        check_sick(seed, sick, list(PRECISIONS)[seed % 3])


def test_no_healthy_network_raises_an_alarm():
    for seed in SEEDS:
        check_healthy(seed, list(PRECISIONS)[seed % 3])


@pytest.mark.chaos
@pytest.mark.parametrize("precision", PRECISIONS)
def test_so_it_is_in_every_precision(precision):
    for seed in range(60):
        check_healthy(seed, precision)
        for sick in SICK:
            check_sick(seed, sick, precision)


def test_a_network_that_has_learnt_its_data_raises_no_alarm():
    """Then nearly all gradients are those of confident samples: tiny and negligible."""
    layer = nn.Linear(1, 2, bias=False)
    model = nn.Sequential(layer)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-0.5], [0.5]]))
    certain = torch.linspace(0, 100, 400)[:, None]  # log odds of the right class
    look = Probe(model, CPU)
    with look.hooks():
        nn.functional.cross_entropy(model(certain), torch.ones(400, dtype=torch.int64)).backward()
    look.add_weights()
    ranking = rank(look.seen(look.rows), None)
    assert max(layer.lost for layer in ranking.layers if layer.part == "gradient") > 0.5
    assert not [layer for layer in ranking.layers if layer.fault]


def test_a_gradient_that_the_scale_loses_is_told_with_the_scale_that_saves_it():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )
    ranking = look_at(model, precision="fp16", scale=2.0**-6)
    lost = [layer for layer in ranking.layers if layer.fault]
    assert lost
    assert {layer.fault for layer in lost} == {"underflow"}
    assert "forward" not in {layer.part for layer in lost}
    assert ranking.lost is not None
    assert ranking.lost > 0.3
    assert ranking.best is not None
    assert ranking.best.scale > 1
    again = look_at(model, precision="fp16", scale=ranking.best.scale)
    assert not [layer for layer in again.layers if layer.fault]


def test_gradients_that_fp16_made_zero_are_lost_and_the_scale_is_not_derived_from_the_others():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        Damped(),
        nn.Conv2d(8, 8, 3),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    ranking = look_at(model, precision="fp16", scale=1024.0)
    lost = {(layer.name, layer.part): layer for layer in ranking.layers if layer.fault}

    assert lost["0", "gradient"].zeros == 1.0
    assert {lost["0", part].fault for part in ("gradient", "weights")} == {"underflow"}
    assert {lost["0", part].lost for part in ("gradient", "weights")} == {1.0}
    assert ranking.lost is not None
    assert ranking.lost > 0.2
    assert ranking.best is not None
    assert ranking.best.lost is None
    assert ranking.best.scale > 1024.0  # those of the other layers alone would do with less


class Damped(nn.Module):
    """Gives its input, and a billionth of the gradient back."""

    def forward(self, x):
        return x.detach() + 1e-9 * (x - x.detach())


def test_a_step_that_the_scaler_skips_accuses_no_layer():
    model, _ = network(0)
    ranking = look_at(model, precision="fp16", scale=2.0**40)
    assert not [layer for layer in ranking.layers if layer.fault]
    assert ranking.lost == 1.0
    assert ranking.best is None


def test_sizes_are_told_without_the_scale():
    model, _ = network(3)
    bare = {(layer.name, layer.part): layer for layer in look_at(model, 3).layers}
    scaled = {(layer.name, layer.part): layer for layer in look_at(model, 3, scale=4096.0).layers}
    for key, layer in bare.items():
        assert scaled[key].largest == pytest.approx(layer.largest, rel=1e-3)
        assert scaled[key].exponents == pytest.approx(layer.exponents, abs=3)
        assert scaled[key].first_exponent == layer.first_exponent
