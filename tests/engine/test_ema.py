"""EMA of the weights: slow in the long run, and fast at first."""

import pytest
import torch

from mptui.engine.optim.ema import WeightAverage
from mptui.events import Step
from tests.engine.small import build_trainer, config, end, small_net


def moved(averaged, values, good=1.0):
    """Set the weights to each of `values` in turn, and update the average."""
    average, model = averaged
    for applied, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(torch.tensor(good), torch.tensor([applied]))
    return float(average.state_dict()["weight"])


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
    assert float(average.state_dict()["weight"]) == pytest.approx(expected)


def test_a_refused_step_does_not_move_it():
    assert moved(averaged(0.9), [1.0, 2.0], good=0.0) == 0.0


def test_in_a_run_the_first_step_moves_it_by_nine_tenths_and_the_second_by_nine_elevenths(tmp_path):
    model = small_net()
    expected = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    run = config(training={"ema_decay": 0.999, "max_steps": 2})
    trainer, events = build_trainer(run, tmp_path, model=model)
    shares = iter((9 / 10, 9 / 11))

    def follow(event):
        if isinstance(event, Step):
            share = next(shares)
            for name, weight in trainer.context.model.named_parameters():
                expected[name] += share * (weight.detach() - expected[name])

    events.then = follow
    trainer.train()
    end(trainer)
    assert trainer.context.parts.average is not None
    for name, average in trainer.context.parts.average.state_dict().items():
        torch.testing.assert_close(average, expected[name])
