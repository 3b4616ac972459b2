"""The gradient norm is that of the current gradients, whenever it was last computed."""

import gc
import math
import weakref

import pytest
import torch

from mptui.engine.job import build_parts
from mptui.engine.optim.fused import CACHED, LARGE, GradientNorm
from tests.engine.small import build_trainer, config

SHAPES = [(64, 128, 3, 3), (257,), (1,), (300, 301), ()]


@pytest.fixture(autouse=True, params=[1, CACHED], ids=["in the backward pass", "at its end"])
def _when(request, monkeypatch):
    monkeypatch.setattr("mptui.engine.optim.fused.CACHED", request.param)


def network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES]
    made[0] = made[0].to(memory_format=torch.channels_last)
    assert any(p.numel() >= LARGE for p in made)
    return [torch.nn.Parameter(p) for p in made]


def backward(parameters, factor=1.0):
    loss = sum((factor * p.sin()).square().sum() for p in parameters)
    torch.autograd.backward(loss)


def expected(parameters):
    grads = [p.grad.double().flatten() for p in parameters if p.grad is not None]
    return torch.cat(grads).norm().float()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("windows", [1, 3])
def test_it_is_of_all_gradients_added_up(early, windows):
    parameters = network()
    norm = GradientNorm(parameters, early=early)
    for number in range(windows):
        backward(parameters, 1.0 + number)
    torch.testing.assert_close(norm.total(), expected(parameters), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shapes", [[(64, 32), (257,), ()], [(300, 301)], [(5,)]])
def test_it_is_of_small_gradients_alone_and_of_one_alone(shapes):
    parameters = [torch.nn.Parameter(torch.linspace(0.1, 1.0, math.prod(s)).view(s)) for s in shapes]
    norm = GradientNorm(parameters, early=True)
    backward(parameters)
    torch.testing.assert_close(norm.total(), expected(parameters), rtol=1e-6, atol=0)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e6])
@pytest.mark.parametrize("where", range(len(SHAPES)))
def test_a_gradient_that_was_changed_since_is_read_again(where, odd):
    parameters = network()
    norm = GradientNorm(parameters, early=True)
    backward(parameters)
    parameters[where].grad.view(-1)[0:1].fill_(odd) if where else parameters[0].grad[0, 0, 0, 0].fill_(odd)
    torch.testing.assert_close(norm.total(), expected(parameters), rtol=1e-6, atol=0, equal_nan=True)


def test_a_gradient_that_was_replaced_or_taken_away_is_not_counted():
    parameters = network()
    norm = GradientNorm(parameters, early=True)
    backward(parameters)
    parameters[0].grad = torch.ones_like(parameters[0])
    parameters[3].grad = None
    torch.testing.assert_close(norm.total(), expected(parameters), rtol=1e-6, atol=0)


def test_it_keeps_no_gradient_and_no_network_alive():
    parameters = network()
    norm = GradientNorm(parameters, early=True)
    backward(parameters)
    grad = weakref.ref(parameters[0].grad)
    parameters[0].grad = None
    norm.forget()
    assert grad() is None
    network_of = weakref.ref(parameters[0])
    del norm, parameters
    gc.collect()
    assert network_of() is None


def test_closed_it_watches_nothing():
    parameters = network()
    norm = GradientNorm(parameters, early=True)
    norm.close()
    backward(parameters)
    assert not norm._noted
    torch.testing.assert_close(norm.total(), expected(parameters), rtol=1e-6, atol=0)


def test_other_settings_leave_one_watch_on_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("mptui.engine.optim.fused.LARGE", 1)
    monkeypatch.setattr("mptui.engine.optim.fused.CACHED", 1)
    trainer, _ = build_trainer(config(), tmp_path)
    build_parts(trainer.context.job, lambda code, message: None, trainer.context.parts)
    assert {len(p._post_accumulate_grad_hooks) for p in trainer.context.model.parameters()} == {1}
