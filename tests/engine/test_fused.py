"""Fused updates equal torch's plain ones, in every layout."""

import pytest
import torch
from torch.autograd.profiler import profile

from mptui.config.schema import TrainingConfig
from mptui.engine.optim.optimizers import build_optimizer
from mptui.models.zoo import use_plain_memory

STEPS = 3
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def network(layout):
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False),
        torch.nn.Conv2d(8, 12, 3, bias=False),
        torch.nn.Conv2d(12, 6, 1, bias=False),
        torch.nn.BatchNorm2d(6),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 5),
    )
    return made.to(memory_format=FORMATS[layout])


def optimizer_of(model, training, *, fused):
    return build_optimizer(model, training, torch.tensor(training.lr), fused=fused)


def backward(model, number):
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
    model.zero_grad()
    model(images).square().mean().backward()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam"])
def test_they_move_each_weight_as_the_plain_update_does(layout, optimizer):
    training = TrainingConfig(optimizer=optimizer, momentum=0.9, weight_decay=0.1, lr=0.05)
    ours, plain = network(layout), network("nchw")
    assert ours[1].weight.is_contiguous() == (layout == "nchw")
    fused, reference = optimizer_of(ours, training, fused=True), optimizer_of(plain, training, fused=False)
    for number in range(STEPS):
        backward(ours, number)
        backward(plain, number)
        fused.update(torch.zeros(()))
        reference.step()
        for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
            state, expected = fused.state[p], reference.state[q]
            for key in fused.state_names:
                torch.testing.assert_close(state[key], expected[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam"])
def test_a_weight_that_some_steps_do_not_use_moves_as_by_the_plain_update(optimizer):
    training = TrainingConfig(optimizer=optimizer, lr=0.05, momentum=0.9 if optimizer == "sgd" else None)
    ours, plain = network("nhwc"), network("nchw")
    fused, reference = optimizer_of(ours, training, fused=True), optimizer_of(plain, training, fused=False)
    for number, unused in enumerate([(1,), (1, 2), (), (2,), ()]):
        for model in (ours, plain):
            backward(model, number)
            for layer in unused:
                model[layer].weight.grad = None
        refused = torch.tensor(float(number == 3))
        fused.update(refused)
        if not refused:
            reference.step()
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_weights_with_gaps_in_memory_move_as_by_the_plain_update():
    training = TrainingConfig(optimizer="adamw", lr=0.05)
    ours, plain = (torch.nn.Linear(4, 3, bias=False) for _ in range(2))
    for model in (ours, plain):
        model.weight = torch.nn.Parameter(torch.arange(24.0).view(3, 8)[:, :4])
    use_plain_memory(ours)
    fused = optimizer_of(ours, training, fused=True)
    reference = optimizer_of(plain, training, fused=False)
    for model in (ours, plain):
        model(torch.ones(2, 4)).sum().backward()
    fused.update(torch.zeros(()))
    reference.step()
    torch.testing.assert_close(ours.weight, plain.weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam"])
def test_no_gradient_is_copied_for_its_layout(optimizer):
    """Torch's fused update copies the gradient of each channels-last weight, which takes longer than it."""
    model = network("nhwc")
    backward(model, 0)
    fused = optimizer_of(model, TrainingConfig(optimizer=optimizer), fused=True)
    with profile() as seen:
        fused.update(torch.zeros(()))
    names = {event.name for event in seen.function_events}
    assert {"aten::_fused_sgd_", "aten::_fused_adamw_", "aten::_fused_adam_"} & names
    assert "aten::clone" not in names
