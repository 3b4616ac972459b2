"""A run with `training.time` ends with its time, and its rate's schedule with it; the clock is the test's."""

from dataclasses import replace

import pytest
import torch

from mptui.config.keys import with_values
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.epochs import ended_by
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Mailbox, Stopped
from mptui.events import EpochFinished, LengthPlanned, RunStarted, Step, Validated
from mptui.runs.view.run_view import RunView
from tests.engine.small import build_trainer, config, end, of

PEAK = 0.05


class Clock(Hook):
    """A clock that a step and a batch of validation advance, and that stops the run at a time."""

    def __init__(self, *, step_s=1.0, later_s=None, val_s=2.0, now=0.0, stop_at=float("inf")):
        self.now, self.stop_at = now, stop_at
        self._step_s, self._later_s, self._val_s = step_s, later_s or step_s, val_s
        self.mailbox = Mailbox()

    def step_begins(self):
        self.now += self._step_s if self.now < 50 else self._later_s
        if self.now >= self.stop_at:
            self.mailbox.stop(None)

    def batch_validated(self, outputs, batch):
        self.now += self._val_s

    def __call__(self):
        return self.now


def timed(folder, clock, *, time="100s", train=40, **training):
    """Return a trainer by that clock, of epochs of 5 steps and a batch of validation."""
    run = config(training={"time": time, "lr": PEAK, **training})
    trainer, events = build_trainer(run, folder / "checkpoints", train=train, seconds=clock)
    clock.mailbox = trainer.context.mailbox
    trainer.context.hooks.add("clock", clock)
    return trainer, events


def trained(folder, clock, **settings):
    """Train to the end of the time; return the steps, and what is left of the peak rate at the last one."""
    trainer, events = timed(folder, clock, **settings)
    trainer.train()
    end(trainer)
    return trainer.state.step, of(events, Step)[-1].lr / PEAK, events


@pytest.mark.parametrize(
    ("clock", "settings", "slack"),
    [
        (Clock(), {}, 3.0),
        (Clock(later_s=3.0), {}, 5.0),  # another program begins to use the device
        (Clock(), {"train": 4000}, 3.0),
        (Clock(val_s=8.0), {}, 14.0),  # the rest is too short for another validation
        (Clock(), {"train": 8}, 3.0),  # each epoch is one step
        (Clock(step_s=4.0, val_s=0.0), {"accumulate": 5}, 5.0),
    ],
    ids=["steady", "slower", "long epochs", "long validation", "one-step epochs", "accumulated"],
)
def test_the_run_ends_with_its_time_and_its_rate_with_the_run(tmp_path, clock, settings, slack):
    steps, rate, events = trained(tmp_path, clock, **settings)
    assert 100 - slack <= clock.now <= 101
    assert rate < 0.005  # of 25 steps
    assert of(events, Validated)[-1].step == steps == of(events, LengthPlanned)[-1].total_steps


def test_a_run_goes_on_with_the_time_that_it_has_left(tmp_path):
    clock = Clock(stop_at=40.0)
    trainer, _ = timed(tmp_path, clock)
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    again = Clock(now=clock.now + 10)  # from the start of the next process to its first step
    trainer, events = timed(tmp_path, again)
    snapshots.restore(trainer.state, read_newest(tmp_path / "checkpoints")[0])
    trainer.train()
    end(trainer)
    assert 97 <= again.now <= 101
    assert of(events, Step)[-1].lr < 0.002 * PEAK
    assert 0.5 * PEAK < of(events, Step)[0].lr < 0.7 * PEAK  # of a cosine, 29 of 64 steps


@pytest.mark.parametrize(("asked", "ends"), [("100s", 100.0), ("150s", 150.0)])
def test_an_ended_run_goes_on_if_it_is_given_more_time(tmp_path, asked, ends):
    trained(tmp_path, clock := Clock())
    clock = Clock(now=clock.now)
    trainer, _ = timed(tmp_path, clock, time=asked)
    snapshots.restore(trainer.state, read_newest(tmp_path / "checkpoints")[0])
    ended = ended_by(trainer.context)
    assert (ended is not None and ended[0] == "training.time") == (asked == "100s")
    trainer.train()
    end(trainer)
    assert ends - 7 <= clock.now <= ends + 1


def test_other_settings_between_two_steps_keep_the_time_and_may_change_it(tmp_path):
    clock = Clock()
    trainer, events = timed(tmp_path, clock)

    class Switch(Hook):
        def step_ends(self):
            context = trainer.context
            given = context.state.given
            if context.state.step == 20:
                changed = with_values(given.config, {"training.time": "150s", "training.weight_decay": 0.5})
                context.take_job(replace(given, config=changed))

    trainer.context.hooks.add("switch", Switch())
    trainer.train()
    end(trainer)
    assert 147 <= clock.now <= 151
    assert of(events, Step)[-1].lr < 0.002 * PEAK


def test_the_steps_may_be_limited_besides(tmp_path):
    steps, rate, _ = trained(tmp_path, clock := Clock(), max_steps=30)
    assert steps == 30
    assert clock.now < 60
    assert rate < 0.01


@pytest.mark.parametrize("time", ["0.5s", "1s"])
def test_a_time_of_less_than_a_step_gives_a_step_and_its_validation(tmp_path, time):
    steps, _, events = trained(tmp_path, Clock(), time=time)
    assert steps <= 2
    assert len(of(events, EpochFinished)) == 1


def test_the_warm_up_is_its_share_of_the_time(tmp_path):
    """Of 20 epochs: before a step is measured the run has 1,000 steps, then 50 in 100 s."""
    _, _, events = trained(tmp_path, Clock(step_s=2.0, val_s=0.0), warmup_epochs=20.0)
    rates = torch.tensor([each.lr for each in of(events, Step)])
    assert 4 <= int(rates.argmax()) <= 6
    assert float(rates.max()) == pytest.approx(PEAK, rel=0.02)


def test_screens_count_the_steps_that_are_planned(tmp_path):
    _, _, events = trained(tmp_path, Clock())
    view = RunView()
    for event in events:
        if not isinstance(event, RunStarted):
            view.handle(event)
    planned = of(events, LengthPlanned)[-1]
    assert (view.total_steps, view.epochs) == (planned.total_steps, planned.epochs)
    assert view.epochs == of(events, EpochFinished)[-1].epoch
