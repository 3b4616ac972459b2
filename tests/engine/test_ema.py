"""EMA of the weights: slow in the long run, and fast at first."""

from dataclasses import replace

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.optim.averages import WeightAverage
from mptui.events import Step
from tests.engine.small import build_trainer, config, end, small_net
from tests.made.runs import QUIET, trained
from tests.small_cnn import NAME


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
    averages = trainer.context.parts.average.state_dict()
    for name, weight in expected.items():
        torch.testing.assert_close(averages[name], weight)


def average_of(trainer):
    assert trainer.context.parts.average is not None
    return trainer.context.parts.average.state_dict()


class Scaled(torch.nn.Module):
    """A network with a BatchNorm, a running statistic of its own, and a constant that is not finite."""

    brightness: torch.Tensor
    limit: torch.Tensor

    def __init__(self):
        super().__init__()
        self.net = small_net()
        self.register_buffer("brightness", torch.zeros(1))
        self.register_buffer("limit", torch.tensor([-torch.inf, torch.inf]))

    def forward(self, images):
        if self.training:
            self.brightness = 0.9 * self.brightness + 0.1 * images.detach().mean().reshape(1)
        return self.net(images)


def test_buffers_are_averaged_with_the_weights_and_validated_with_them(tmp_path):
    model = Scaled()
    run = config(training={"ema_decay": 0.9, "epochs": 2})
    trainer, events = build_trainer(run, tmp_path, model=model)
    names = ["net.1.running_mean", "net.1.running_var", "brightness"]
    expected = {name: model.get_buffer(name).clone() for name in names}
    validated = []

    def follow(event):
        if isinstance(event, Step):
            share = 1 - min(0.9, event.step / (9 + event.step))
            for name in names:
                expected[name] += share * (model.get_buffer(name) - expected[name])

    def note(module, inputs):
        if not module.training:
            validated.append({name: module.get_buffer(name).clone() for name in [*names, "limit"]})

    events.then = follow
    model.register_forward_pre_hook(note)
    trainer.train()
    end(trainer)
    raw, averages = model.state_dict(), average_of(trainer)
    for name in names:
        torch.testing.assert_close(validated[-1][name], expected[name])
        torch.testing.assert_close(averages[name], expected[name])
        assert not torch.allclose(raw[name], expected[name], rtol=1e-3)  # the network trains on with its own
    assert torch.equal(validated[-1]["limit"], model.limit)
    assert torch.equal(averages["limit"], model.limit)


def test_an_average_of_buffers_goes_on_from_a_checkpoint_and_begins_anew_from_one_without(tmp_path):
    run = config(training={"ema_decay": 0.99, "epochs": 2, "max_steps": 7})
    first, _ = build_trainer(run, tmp_path, model=Scaled())
    first.train()
    end(first)
    saved = read_newest(tmp_path)[0]
    second, _ = build_trainer(run, tmp_path, model=Scaled())
    snapshots.restore(second.state, saved)
    averages = average_of(second)
    assert averages.keys() == saved.tensors["average"].keys()
    assert all(torch.equal(averages[name], value) for name, value in saved.tensors["average"].items())
    weights_alone = {name: saved.tensors["average"][name] for name, _ in Scaled().named_parameters()}
    snapshots.restore(second.state, replace(saved, tensors={**saved.tensors, "average": weights_alone}))
    begun = average_of(second)
    assert torch.equal(begun["brightness"], saved.tensors["model"]["brightness"])
    end(second)


@pytest.mark.slow
def test_after_a_short_run_the_average_is_validated_about_as_well_as_the_weights_themselves(tmp_path):
    """160 steps, in which a decay of 0.999 alone would leave 85 % of the random weights in the average."""
    settings = {
        **QUIET,
        "model.name": NAME,
        "data.name": "shapes",
        "data.samples": 128,
        "data.image_size": 16,
        "data.workers": 0,
        "training.batch_size": 4,
        "training.epochs": 5,
        "training.lr": 0.01,
        "training.optimizer": "adamw",
        "hardware.device": "cpu",
    }
    raw, average = (
        trained(tmp_path / name, {**settings, **own}).result.summary["final"]["val_loss"]
        for name, own in {"raw": {}, "average": {"training.ema_decay": 0.999}}.items()
    )
    assert raw < 1.5  # 8 classes: 2.08 by chance
    assert average < 1.1 * raw
