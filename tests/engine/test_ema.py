"""The average of the weights: slow in the long run, and quick at first."""

import pytest
import torch

from mptui.engine.ema import WeightAverage


def moved(averaged, values, good=1.0):
    """Set the weights to each of `values` in turn, and let the average follow."""
    average, model = averaged
    for applied, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(torch.tensor(good), torch.tensor([applied]))
    return float(average.state()["weight"])


def averaged(decay):
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    return WeightAverage(model, decay), model


def test_a_short_run_is_not_averaged_with_the_random_weights_it_began_with():
    slow = moved(averaged(0.9999), [1.0] * 20)
    assert slow > 0.99


def test_after_the_first_steps_it_forgets_as_it_was_told():
    average, model = averaged(0.5)
    expected = 0.0
    for applied, value in enumerate([3.0, 1.0, 4.0, 1.0, 5.0, 9.0] * 3):
        decay = min(0.5, (1 + applied) / (10 + applied))
        expected = decay * expected + (1 - decay) * value
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(torch.tensor(1.0), torch.tensor([applied]))
    assert float(average.state()["weight"]) == pytest.approx(expected)


def test_a_refused_step_does_not_move_it():
    assert moved(averaged(0.9), [1.0, 2.0], good=0.0) == 0.0
