"""Changes of learning rate or batch during a run: the ramp, its resume, and additional epochs."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from mptui.config.schema import TrainingConfig
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command, Stopped
from mptui.engine.optim.schedule import (
    RAMP_STEPS,
    Ramp,
    Schedule,
    continue_schedule,
    schedule_of,
    schedule_progress,
)
from mptui.engine.trainer import Trainer
from mptui.events import Event, PresetSwitched, Step
from tests.engine.resuming import assert_the_same, each_step
from tests.engine.small import build_trainer, config, end, of

SPE = 10


def schedule(**training):
    settings = {"epochs": 10, "lr": 0.1, "batch_size": 8, **training}
    return schedule_of(TrainingConfig(**settings), SPE)


def test_a_ramp_leads_linearly_from_the_rate_before_to_the_schedule():
    plain = schedule(schedule="constant")
    ramped = replace(plain, ramp=Ramp(first=20, steps=4, rate=0.0))
    np.testing.assert_allclose(ramped.rates(18, 9), [0.1, 0.1, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1])
    assert ramped.target_at(20) == pytest.approx(0.1)
    assert ramped.rate_at(21) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("new", "ramped", "start"),
    [
        ({"lr": 0.39}, False, None),
        ({"lr": 0.4}, True, 0.1),  # from the previous rate
        ({"lr": 0.01}, False, None),  # a lower rate applies at once
        ({"lr": 0.05, "batch_size": 2}, True, 0.0125),  # from a quarter of the new one
        ({"lr": 0.8, "batch_size": 64}, True, 0.1),
        ({"batch_size": 16}, False, None),
    ],
)
def test_a_large_change_of_rate_or_batch_is_approached_by_a_ramp(new, ramped, start):
    flat = {"schedule": "constant", "epochs": 20}
    before = schedule_progress(schedule(**flat), 40)
    going = continue_schedule(schedule(**flat, **new), 160, before)
    ramp = going.schedule.ramp
    assert (ramp is not None) == ramped
    if ramp is not None:
        assert (ramp.first, ramp.steps) == (40, RAMP_STEPS)
        assert ramp.rate == pytest.approx(start)


def test_a_ramp_takes_a_quarter_of_what_is_left_at_most():
    going = continue_schedule(schedule(lr=0.8), 20, schedule_progress(schedule(), 80))
    assert going.schedule.ramp == Ramp(80, 5, schedule().rate_at(80))


def test_other_epochs_go_on_from_the_rate_and_have_no_second_warm_up():
    short = schedule(epochs=10, warmup_epochs=5.0)
    assert short.warmup_steps == SPE  # a tenth of the run
    before = schedule_progress(short, 60)
    going = continue_schedule(schedule(epochs=100, warmup_epochs=5.0), 940, before)
    assert going.position == 60
    assert going.schedule.warmup_steps == SPE
    rates = going.schedule.rates(60, 60)
    assert abs(rates[0] - before.rate) < 0.1 * before.rate
    assert rates[RAMP_STEPS] == pytest.approx(going.schedule.target_at(60 + RAMP_STEPS))


@pytest.mark.parametrize(
    ("shape", "applied", "tried"),
    [
        ({"warmup_epochs": 1.0}, 4, 4),
        ({"warmup_epochs": 1.0}, 4, 7),  # fp16 has skipped three steps
        ({"schedule": "step", "step_epochs": 3}, 45, 45),
        ({"schedule": "constant"}, 45, 45),
    ],
)
def test_more_epochs_change_no_rate_that_they_have_nothing_to_do_with(shape, applied, tried):
    before = schedule_progress(schedule(**shape), applied)
    longer = schedule(epochs=20, **shape)
    going = continue_schedule(longer, longer.total_steps - tried, before)
    assert going.schedule.ramp is None
    assert going.position == applied
    assert going.gain == 1.0
    np.testing.assert_array_equal(going.schedule.rates(applied, 5), schedule(**shape).rates(applied, 5))


def test_the_warm_up_under_way_ends_at_the_epoch_it_was_to_end_at():
    one, other = schedule(warmup_epochs=1.0), schedule_of(TrainingConfig(epochs=10, warmup_epochs=1.0), 40)
    going = continue_schedule(other, 380, schedule_progress(one, 5))
    assert going.position == 20
    assert going.schedule.warmup_steps == 40


def test_a_state_is_restored_with_its_ramp():
    ramped = replace(schedule(), ramp=Ramp(first=20, steps=8, rate=0.001))
    going = continue_schedule(schedule(), 77, schedule_progress(ramped, 23))
    assert going.schedule == replace(ramped, warmup=0)
    assert going.gain == 1.0


# -- in a run

SMALL: dict[str, object] = {"epochs": 4, "batch_size": 2, "lr": 0.002}
LARGE: dict[str, object] = {"epochs": 4, "batch_size": 8, "lr": 0.05}
AT = 5


def trainer_of(folder, training):
    trainer, events = build_trainer(config(training=training), folder, train=38)

    def rebuild(command):
        other, _ = build_trainer(config(training=LARGE), folder, train=38, model=trainer.context.model)
        return ProfileSwitch(other.context.job, "large", "small", {"training.lr": ["0.002", "0.05"]})

    trainer.context.rebuild = rebuild
    return trainer, events


def switching(trainer, events, also=lambda event: None):
    """Request the switch after step AT."""

    def then(event):
        if (
            isinstance(event, Step)
            and event.step == AT
            and trainer.context.job.config.training.batch_size == 2
        ):
            trainer.context.mailbox.post(Command("set", "large"))
        also(event)

    events.then = then


@dataclass
class Switched:
    """A run that was switched, and what was seen of it."""

    trainer: Trainer
    events: list[Event]
    told: PresetSwitched
    momentum: dict[str, float]
    """Norm of the momentum before and after the switch, by the kind of the event that told it."""
    weights: dict[int, torch.Tensor]
    """All weights by step."""


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    trainer, events = trainer_of(tmp_path_factory.mktemp("switched") / "whole", SMALL)
    momentum, weights = {}, {}

    def note(event):
        if isinstance(event, (Step, PresetSwitched)) and event.step == AT:
            state = trainer.context.parts.optimizer.state.values()
            momentum[event.kind] = sum(float(s["momentum_buffer"].square().sum()) for s in state) ** 0.5
        if isinstance(event, Step):
            weights[event.step] = torch.cat(
                [p.detach().flatten() for p in trainer.context.model.parameters()]
            )

    switching(trainer, events, note)
    trainer.train()
    end(trainer)
    return Switched(trainer, events, of(events, PresetSwitched)[0], momentum, weights)


def test_stopped_in_the_middle_of_a_ramp_it_ends_with_the_same_bits(tmp_path, switched):
    told = switched.told
    assert told.batch == [2, 8]
    assert told.lr[1] > 20 * told.lr[0]
    assert told.ramp_steps >= 4
    assert told.planned_lr[0] == [told.step, pytest.approx(told.lr[1], rel=30)]

    due = {AT + 1, AT + 2, AT + told.ramp_steps, AT + told.ramp_steps + 2}
    resumed = None
    history: list[Event] = []
    stops: set[int] = set()
    while resumed is None:
        large = any(isinstance(event, PresetSwitched) for event in history)
        each, heard = trainer_of(tmp_path / "parts", LARGE if large else SMALL)
        if history:
            snapshots.restore(each.state, read_newest(tmp_path / "parts")[0])

        def stop(event, each=each):
            if each_step(event) is not None and event.step in due - stops:
                stops.add(event.step)
                each.context.mailbox.stop(None)

        switching(each, heard, stop)
        try:
            each.train()
            resumed = each
        except Stopped:
            pass
        history += heard
        end(each)
    assert stops == due
    assert_the_same((switched.trainer, switched.events), (resumed, history))


def test_momentum_of_the_past_is_not_multiplied_by_the_new_rate(switched):
    norms, rates = switched.momentum, switched.told.lr
    assert norms["preset_switched"] * rates[1] == pytest.approx(norms["step"] * rates[0], rel=1e-3)


def test_a_much_larger_rate_does_not_throw_the_weights_off(switched):
    weights = switched.weights
    moved = {step: float((weights[step] - weights[step - 1]).norm()) for step in range(2, AT + 4)}
    assert moved[AT + 1] < 3 * moved[AT]  # the rate is 25 times as high


def test_more_epochs_on_a_resume_go_on_from_the_rate_it_had(tmp_path):
    training: dict[str, object] = {"epochs": 4, "batch_size": 8, "lr": 0.05}
    training |= {"warmup_epochs": 4.0, "warmup_max_fraction": 0.25}
    trainer, events = build_trainer(config(training=training), tmp_path, train=40)

    def stop(event):
        if isinstance(event, Step) and event.step == 14:
            trainer.context.mailbox.stop(None)

    events.then = stop
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    had = of(events, Step)[-1].lr
    longer, heard = build_trainer(config(training={**training, "epochs": 40}), tmp_path, train=40)
    snapshots.restore(longer.state, read_newest(tmp_path)[0])
    assert longer.context.parts.schedule.warmup_steps == 5
    heard.then = lambda event: longer.context.mailbox.stop(None) if isinstance(event, Step) else None
    with pytest.raises(Stopped):
        longer.train()
    end(longer)
    rate = of(heard, Step)[0].lr
    assert rate == pytest.approx(had, rel=0.2)


def test_a_checkpoint_of_an_older_version_continues_its_schedule(tmp_path):
    trainer, _ = build_trainer(config(training={"epochs": 40}), tmp_path, train=40)
    snapshot = snapshots.take(trainer.state)
    snapshot.state["lr"] = 0.04
    del snapshot.state["standing"]
    snapshots.restore(trainer.state, snapshot)
    schedule = trainer.context.parts.schedule
    assert isinstance(schedule, Schedule)
    assert schedule.ramp is None
    assert trainer.context.parts.schedule_progress().rate == pytest.approx(schedule.rate_at(0))
    end(trainer)


@pytest.mark.parametrize(("training", "stays"), [({"lr": 0.2}, True), ({"batch_size": 4}, False)])
def test_compiled_code_and_the_loss_scale_stay_where_a_setting_has_nothing_to_do_with_them(
    tmp_path, training, stays
):
    base: dict[str, object] = {"batch_size": 8, "lr": 0.05}
    trainer, _ = build_trainer(config(training=base), tmp_path, precision="fp16")
    other, _ = build_trainer(
        config(training=base | training), tmp_path, precision="fp16", model=trainer.context.model
    )
    compiler = trainer.context.parts.compiler
    trainer.context.parts.precision.set_scale(128.0)
    trainer.context.take_job(other.context.job)
    assert (trainer.context.parts.compiler is compiler) == stays
    scale = trainer.context.parts.precision.loss_scale()
    assert scale is not None
    assert float(scale) == 128.0
    end(trainer)
    end(other)
