"""A run with finite numbers and a loss far too high has also diverged."""

import json
import math

import pytest
import torch

from mptui.engine.guards.detector import ALERT_AFTER, DIVERGED_AFTER, FAR, DivergenceDetector
from mptui.engine.reporting.reporter import StepRow
from mptui.engine.trainer import Trainer
from mptui.errors import DivergedError
from mptui.events import Advice, Alert, Diagnosed, EpochFinished, Recovered, Step, Validated, Warned
from tests.engine.guards.sick import poison
from tests.engine.small import build_trainer, config, end, of, small_net

CHANCE = 2.0
RATE = 0.05


def rows(losses):
    return [
        StepRow(
            step=step,
            epoch=1,
            epoch_step=step,
            samples=8,
            sample=8 * (step - 1),
            loss=loss,
            grad_norm=1.0,
            refused=False,
            loss_scale=1.0,
            lr=0.1,
        )
        for step, loss in enumerate(losses, 1)
    ]


def watched(losses, at_once=1):
    watch = DivergenceDetector(50, None, CHANCE)
    each = rows(losses)
    for first in range(0, len(each), at_once):
        watch.update(each[first : first + at_once])
    return watch


HIGH = FAR * CHANCE + 0.1


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_a_loss_far_above_its_best_and_chance_for_a_stretch_is_a_divergence(at_once):
    watch = watched([1.0] * 10 + [HIGH] * DIVERGED_AFTER, at_once)
    assert watch.alarm is not None
    assert watch.alarm.finite
    assert watch.last_good == 10
    assert watched([1.0] * 10 + [HIGH] * (DIVERGED_AFTER - 1), at_once).alarm is None


@pytest.mark.parametrize(
    "losses",
    [
        [0.01] * 10 + [FAR * CHANCE] * 100,  # far above its best, but not above chance
        [1e6 - step for step in range(100)],  # above chance, but not above its best
        ([1.0] * 3 + [HIGH] * (DIVERGED_AFTER - 1)) * 5,  # spikes
    ],
    ids=["near chance", "from far above", "spikes"],
)
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_other_high_losses_are_none(losses, at_once):
    assert watched(losses, at_once).alarm is None


def test_the_stretch_goes_on_after_a_resume():
    first = watched([1.0] * 10 + [HIGH] * 5)
    second = DivergenceDetector(50, None, CHANCE)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(rows([HIGH] * (DIVERGED_AFTER - 5)))
    assert second.alarm is not None


class Far(torch.nn.Module):
    """A net with far too large outputs from the second epoch on, while the rate is the initial one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()
        self.trainer: Trainer | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(images)
        trainer = self.trainer
        if (
            trainer is None
            or not trainer.state.cursor.epoch
            or trainer.context.job.config.training.lr != RATE
        ):
            return outputs
        return outputs.detach() * 0 + outputs.roll(1, dims=1).detach() * 1e4 + 0 * outputs


def diverging(folder, interval_s=0.0, **guards):
    run = config(
        training={"epochs": 6, "lr": RATE, "schedule": "constant"},
        logging={"step_interval_s": interval_s},
        guards={"snapshot_every": 4, **guards},
    )
    model = Far()
    trainer, events = build_trainer(run, folder, model=model)
    model.trainer = trainer
    return trainer, events


def ended(folder, interval_s=0.0):
    """Train such a run to its end; return the trainer and its events."""
    trainer, events = diverging(folder, interval_s)
    trainer.train()
    end(trainer)
    return trainer, events


@pytest.fixture(scope="module")
def read_at_once(tmp_path_factory):
    """A run whose figures are read after each step."""
    return ended(tmp_path_factory.mktemp("at_once") / "run")


@pytest.fixture(scope="module")
def read_late(tmp_path_factory):
    """A run whose figures are read at the ends of epochs."""
    return ended(tmp_path_factory.mktemp("late") / "run", 3600.0)


@pytest.mark.parametrize("when", ["read_at_once", pytest.param("read_late", marks=pytest.mark.slow)])
def test_the_ladder_is_taken_from_the_last_state_whose_loss_was_as_it_should_be(when, request):
    trainer, events = request.getfixturevalue(when)
    (recovered,) = of(events, Recovered)
    assert recovered.action.startswith(f"learning rate {RATE} → {RATE / 2}, back to step 4:")
    assert (trainer.state.step, trainer.context.job.config.training.lr) == (30, RATE / 2)
    (found,) = of(events, Diagnosed)
    assert (found.problem, found.where) == ("divergence", "loss")
    assert "far too high" in found.detail


def test_it_is_an_alert_with_advice_and_told_when_it_is_over(read_at_once):
    _, events = read_at_once
    on, over = of(events, Alert)
    assert (on.code, on.over, over.code, over.over) == ("diverging", False, "diverging", True)
    assert on.step == 5 + ALERT_AFTER
    advice = [event.setting for event in of(events, Advice) if event.code == "diverging"]
    assert advice == ["training.lr=0.005"]


def test_a_run_that_is_to_stop_at_a_divergence_stops(tmp_path):
    trainer, _ = diverging(tmp_path, on_nan="stop")
    with pytest.raises(DivergedError, match="the loss was far too high"):
        trainer.train()
    end(trainer)
    assert trainer.state.step >= 5 + DIVERGED_AFTER


def test_a_run_that_ignores_it_has_its_alert(tmp_path):
    trainer, events = diverging(tmp_path, on_nan="ignore")
    trainer.train()
    end(trainer)
    assert [alert.over for alert in of(events, Alert)] == [False]
    assert not of(events, Recovered)
    assert trainer.state.step == 30


def test_a_healthy_run_has_no_alert(tmp_path):
    trainer, events = build_trainer(config(), tmp_path)
    trainer.train()
    end(trainer)
    assert not of(events, Alert)


# -- missing results


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_validation_whose_loss_is_not_finite_is_never_the_best(tmp_path, value):
    trainer, events = build_trainer(config(training={"epochs": 1}), tmp_path, val=16)
    poison(trainer.context.job.val_loader, {(0, 8)}, value)
    trainer.train()
    end(trainer)
    (validated,) = of(events, Validated)
    assert not math.isfinite(validated.loss)
    assert math.isfinite(validated.metrics["acc1"])
    assert not validated.best
    assert not of(events, EpochFinished)[0].best
    assert trainer.state.best.epoch == 0


def test_a_validation_whose_loss_is_finite_and_huge_is_never_the_best(tmp_path):
    trainer, events = build_trainer(config(training={"epochs": 1}), tmp_path, val=16)
    poison(trainer.context.job.val_loader, {(0, 0), (0, 8)}, -1e12)
    trainer.train()
    end(trainer)
    (validated,) = of(events, Validated)
    assert 1e3 < validated.loss < math.inf
    assert not validated.best
    assert trainer.state.best.epoch == 0


def test_a_run_that_skipped_most_of_its_steps_ends_with_a_warning(tmp_path):
    run = config(training={"epochs": 3, "max_steps": 14}, precision={"grad_scaler": {"init_scale": 2.0**26}})
    trainer, events = build_trainer(run, tmp_path, precision="fp16")
    trainer.train()
    end(trainer)
    assert trainer.context.reporter.totals.applied
    skipped = of(events, Step)[-1].skipped_steps
    (warned,) = [w for w in of(events, Warned) if w.code == "skipped_steps"]
    assert warned.message.startswith(f"{skipped} of 14 steps were skipped")
    assert "init_scale" in warned.message
