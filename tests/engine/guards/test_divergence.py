"""A diverging run rolls back and continues with a fallback, or ends with a clear message."""

import math
from dataclasses import replace

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import Stopped
from mptui.engine.trainer import Trainer
from mptui.errors import DivergedError
from mptui.events import Diagnosed, Event, PrecisionChanged, Recovered, Step, Warned
from tests.engine.guards.sick import Gain, Steep, assert_finite, bits, gain_net, leave_out, trained
from tests.engine.small import build_trainer, config, end, of, small_net
from tests.gpus import DEVICES


def moves(events):
    return [e.action.partition(", back to")[0] for e in of(events, Recovered) if e.problem == "divergence"]


# -- the fallbacks


def test_a_layer_that_overflows_in_fp16_is_named_and_the_run_ends_well_in_bf16(tmp_path):
    trainer, events = trained(tmp_path, gain_net())
    assert moves(events) == ["precision fp16 → bf16"]
    (found,) = of(events, Diagnosed)
    assert (found.where, found.layer, found.operation) == ("forward", "1", "mul")
    assert "float16" in found.detail
    (changed,) = of(events, PrecisionChanged)
    assert (changed.previous, changed.precision) == ("fp16", "bf16")
    assert 'layer "1"' in of(events, Recovered)[0].action
    assert_finite(trainer, events)


def test_without_bf16_the_layer_gets_fp32_for_itself(tmp_path):
    trainer, events = trained(tmp_path, gain_net(), fallbacks=("fp32",))
    assert moves(events) == ['layer "1" in fp32']
    assert trainer.context.job.precision == "fp16"
    assert all(step.nonfinite == 0 for step in of(events, Step)[3:])
    assert_finite(trainer, events)


def test_the_ladder_is_climbed_in_order_as_one_layer_after_another_overflows(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), Gain(1e5), Gain(3.0), *gain_net()[2:])
    trainer, events = trained(tmp_path, model, fallbacks=("fp32",), training={"epochs": 2, "lr": 0.01})
    # the second multiplies in the dtype of its input from the first, so one fp32 layer is enough
    assert moves(events) == ['layer "1" in fp32']
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 1), Gain(1e5), torch.nn.Conv2d(8, 8, 1), *gain_net()[2:]
    )
    trainer, events = trained(tmp_path, model, fallbacks=("fp32",), training={"epochs": 2, "lr": 0.01})
    assert moves(events) == ['layer "1" in fp32', 'layer "2" in fp32']
    assert_finite(trainer, events)


def test_a_rate_that_is_too_high_is_halved(tmp_path):
    trainer, events = trained(
        tmp_path,
        small_net(norm=False),
        precision="fp32",
        training={"epochs": 3, "lr": 60.0},
        guards={"max_recoveries": 30},
    )
    assert moves(events)[:2] == ["learning rate 60 → 30", "learning rate 30 → 15"]
    assert {move.split()[0] for move in moves(events)} == {"learning"}
    assert trainer.context.job.config.training.lr == 60.0 / 2 ** len(moves(events))
    assert_finite(trainer, events)


def test_gradients_that_overflow_at_the_floor_of_the_scale_are_a_divergence(tmp_path):
    trainer, events = trained(
        tmp_path,
        torch.nn.Sequential(gain_net(1.0), Steep(2.0**30)),
        training={"lr": 1e-12},
        precision_table={"grad_scaler": {"init_scale": 64.0, "min_scale": 8.0}},
    )
    assert moves(events) == ["precision fp16 → bf16"]
    (found,) = of(events, Diagnosed)
    assert (found.where, found.layer) == ("backward", "1")
    assert found.loss_scales == {"1": 32.0, "2": 16.0, "3": 8.0}
    assert_finite(trainer, events)


def test_a_streak_of_skips_lowers_the_scale_first(tmp_path):
    trainer, events = trained(
        tmp_path,
        torch.nn.Sequential(gain_net(1.0), Steep(2.0**8)),
        training={"lr": 1e-12, "epochs": 2},
        # it falls too slowly to get there by itself
        precision_table={"grad_scaler": {"init_scale": 2.0**24, "backoff_factor": 0.99}},
        guards={"max_skipped_streak": 4},
    )
    assert {move.rpartition(" scale")[0] for move in moves(events)} == {"loss"}
    scale = trainer.context.parts.precision.loss_scale()
    assert scale is not None
    assert scale < 2.0**20
    assert_finite(trainer, events)


# -- the rollback


class Exploding(torch.nn.Module):
    """A net with NaN outputs in training at some places of the data, while the rate is the initial one."""

    def __init__(self, places):
        super().__init__()
        self.net, self.places = small_net(), places
        self.trainer: Trainer | None = None

    def forward(self, images):
        outputs = self.net(images)
        if self.trainer is not None and self.training:
            here = (self.trainer.state.cursor.epoch, self.trainer.state.cursor.sample)
            rate = self.trainer.context.job.config.training.lr
            if here in self.places and rate == RATE:
                outputs = outputs * math.nan
        return outputs


RATE = 0.05
FLAT = {"epochs": 3, "lr": RATE, "schedule": "constant"}
BAD = [(1, 16), (1, 24), (1, 32)]
"""Steps 8, 9 and 10, in the second epoch of 5 steps."""
UPDATES = [
    ("adamw", False),
    pytest.param("sgd", True, marks=pytest.mark.slow),
    pytest.param("sgd", False, marks=pytest.mark.slow),
    pytest.param("adamw", True, marks=pytest.mark.slow),
]
"""Optimizers, fused or not."""


def exploding(
    folder,
    *,
    interval_s=0.0,
    training=FLAT,
    every=3,
    bad=BAD,
    optimizer="sgd",
    fused=True,
    device="cpu",
    **guards,
):
    run = config(
        training={**training, "optimizer": optimizer},
        speed={"fused": fused},
        logging={"step_interval_s": interval_s},
        guards={"snapshot_every": every, **guards},
    )
    model = Exploding(bad)
    trainer, events = build_trainer(run, folder, model=model, device=torch.device(device))
    model.trainer = trainer
    return trainer, events


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("optimizer", "fused"), UPDATES)
def test_the_run_is_the_one_that_took_the_gentler_setting_at_the_snapshot(tmp_path, optimizer, fused, device):
    if device == "cuda":
        torch.use_deterministic_algorithms(True)
    updated = {"optimizer": optimizer, "fused": fused, "device": device}
    trainer, events = exploding(tmp_path / "a", **updated)
    trainer.train()
    end(trainer)
    assert moves(events) == [f"learning rate {RATE} → {RATE / 2}"]
    back_at = of(events, Recovered)[0].step
    # the last multiple of 3 before step 8; a GPU tells the losses some steps late
    assert back_at in ({6} if device == "cpu" else {0, 3, 6})

    # the same by hand: stopped there, resumed at half the rate without the batch of step 8
    if back_at:
        first, _ = exploding(tmp_path / "b", bad=[], **updated)

        def stop_after_this_step(model, _):
            if model.training and first.state.step == back_at - 1:
                first.context.mailbox.stop(None)

        first.context.model.register_forward_pre_hook(stop_after_this_step)
        with pytest.raises(Stopped):
            first.train()
        end(first)
        assert first.state.step == back_at
    half = {**FLAT, "lr": RATE / 2}
    second, _ = exploding(tmp_path / "b", bad=[], training=half, **updated)
    if back_at:
        snapshots.restore(second.state, read_newest(tmp_path / "b")[0])
    leave_out(second, BAD[:1])
    second.train()
    end(second)
    assert bits(trainer) == bits(second)
    assert trainer.state.step == second.state.step == 14


@pytest.mark.parametrize(
    ("optimizer", "fused"),
    [
        ("sgd", True),
        pytest.param("adamw", False, marks=pytest.mark.slow),
        pytest.param("sgd", False, marks=pytest.mark.slow),
        pytest.param("adamw", True, marks=pytest.mark.slow),
    ],
)
def test_back_at_the_very_start_nothing_is_left_of_the_steps_that_were_taken(tmp_path, optimizer, fused):
    bad = [(0, 16), (0, 24), (0, 32)]
    trainer, events = exploding(tmp_path / "a", bad=bad, optimizer=optimizer, fused=fused, every=50)
    trainer.train()
    end(trainer)
    assert of(events, Recovered)[0].step == 0
    half = {**FLAT, "lr": RATE / 2}
    other, _ = exploding(tmp_path / "b", bad=[], training=half, optimizer=optimizer, fused=fused)
    leave_out(other, bad[:1])
    other.train()
    end(other)
    assert bits(trainer) == bits(other)


def test_a_preset_can_not_bring_back_what_overflowed(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path, precision="fp16", model=gain_net())
    trainer.train()
    assert trainer.context.job.precision == "bf16"
    for asked, used in (("fp16", "bf16"), ("bf16", "bf16"), ("fp32", "fp32")):
        trainer.context.take_job(replace(trainer.context.job, precision=asked))
        assert trainer.context.job.precision == used
    end(trainer)


def test_when_it_is_noticed_changes_nothing(tmp_path):
    soon, _ = exploding(tmp_path / "soon")
    late, events = exploding(tmp_path / "late", interval_s=3600.0)
    for trainer in (soon, late):
        trainer.train()
        end(trainer)
    assert len(moves(events)) == 1
    assert bits(soon) == bits(late)
    assert snapshots.take(soon.state).state["guards"] == snapshots.take(late.state).state["guards"]


def test_a_run_that_was_stopped_goes_on_as_gently(tmp_path):
    """Stopped after the first two steps after the recovery, and later."""
    whole, _ = exploding(tmp_path / "whole")
    whole.train()
    end(whole)
    stops = {7, 8, 12}
    seen: set[int] = set()
    history: list[Event] = []
    while True:
        trainer, events = exploding(tmp_path / "parts")
        if history:
            snapshots.restore(trainer.state, read_newest(tmp_path / "parts")[0])

        def stop(event, trainer=trainer):
            repaired = trainer.context.job.config.training.lr < RATE
            if isinstance(event, Step) and repaired and event.step in stops - seen:
                seen.add(event.step)
                trainer.context.mailbox.stop(None)

        events.then = stop
        try:
            trainer.train()
        except Stopped:
            history += events
            end(trainer)
            continue
        end(trainer)
        break
    assert seen == stops
    assert bits(trainer) == bits(whole)
    assert moves(history + events) == [f"learning rate {RATE} → {RATE / 2}"]


def test_a_snapshot_of_a_state_that_never_made_a_good_step_is_not_gone_back_to(tmp_path):
    # every step from 8 on is bad, and a snapshot is due at step 9
    trainer, events = exploding(tmp_path, every=9, bad=BAD, interval_s=3600.0)
    trainer.train()
    end(trainer)
    assert of(events, Recovered)[0].step == 0


def test_fp32_layers_and_precision_are_there_again_after_a_resume(tmp_path):
    trained(tmp_path, gain_net(), fallbacks=("fp32",), training={"epochs": 2, "lr": 0.01})
    run = config(training={"epochs": 3, "lr": 0.01})
    resumed, events = build_trainer(run, tmp_path, precision="fp16", model=gain_net(), fallbacks=("fp32",))
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    resumed.train()
    end(resumed)
    assert moves(events) == []
    assert_finite(resumed, events)
    assert set(resumed.context.model.state_dict()) == set(gain_net().state_dict())


# -- the end


def test_when_nothing_helps_it_ends_with_a_report(tmp_path):
    run = config(training={"epochs": 20}, guards={"max_recoveries": 2})
    trainer, events = build_trainer(run, tmp_path, precision="fp16", model=gain_net(math.inf))
    with pytest.raises(DivergedError, match='layer "1"') as caught:
        trainer.train()
    end(trainer)
    assert moves(events) == ["learning rate 0.05 → 0.025", "learning rate 0.025 → 0.0125"]
    assert "2 fallbacks did not help" in caught.value.message
    assert "--lr" in caught.value.hint
    assert "divergence.json" in caught.value.hint
    report = of(events, Diagnosed)[-1]
    assert report.moves == moves(events)
    assert len(report.files) == 8
    assert report.advice


def test_asked_to_stop_it_stops_and_names_the_layer(tmp_path):
    run = config(guards={"on_nan": "stop"})
    trainer, events = build_trainer(run, tmp_path, precision="fp16", model=gain_net())
    with pytest.raises(DivergedError, match='layer "1"') as caught:
        trainer.train()
    end(trainer)
    assert "bf16" in caught.value.hint
    assert moves(events) == []
    assert trainer.state.step == 3


def test_asked_to_ignore_it_only_counts(tmp_path):
    run = config(guards={"on_nan": "ignore"})
    trainer, events = build_trainer(run, tmp_path, precision="fp16", model=gain_net(), fallbacks=("fp32",))
    with pytest.raises(DivergedError, match="no step was applied"):
        trainer.train()
    end(trainer)
    assert of(events, Recovered) == []
    assert of(events, Diagnosed) == []
    assert trainer.context.reporter.totals.skipped == trainer.state.step == 10


# -- memory for snapshots


def with_free_memory(monkeypatch, *free):
    """Set the host's free bytes at the first query, the second, and so on."""
    left = list(free)
    told = "mptui.engine.guards.rollback.host_memory"
    monkeypatch.setattr(told, lambda: (1000, left.pop(0) if len(left) > 1 else left[0]))


def test_where_two_states_do_not_fit_one_is_kept_and_that_is_told(tmp_path, monkeypatch):
    with_free_memory(monkeypatch, 10**9, 60)
    trainer, events = exploding(tmp_path)
    trainer.train()
    end(trainer)
    assert moves(events) == [f"learning rate {RATE} → {RATE / 2}"]
    assert of(events, Recovered)[0].step == 6
    (warned,) = [w for w in of(events, Warned) if w.code == "snapshot_memory"]
    assert "only one snapshot for a rollback instead of two" in warned.message


def test_where_no_state_fits_a_divergence_ends_the_run_and_that_is_told_before(tmp_path, monkeypatch):
    with_free_memory(monkeypatch, 60)
    trainer, events = exploding(tmp_path)
    with pytest.raises(DivergedError):
        trainer.train()
    end(trainer)
    (warned,) = [w for w in of(events, Warned) if w.code == "snapshot_memory"]
    assert warned.step == 0
    assert "no snapshot for a rollback" in warned.message


def test_half_of_the_free_memory_is_left_to_others(tmp_path, monkeypatch):
    trainer, events = exploding(tmp_path)
    size = snapshots.size_of(trainer.state)
    with_free_memory(monkeypatch, 2 * size - 1)
    trainer.context.begin()
    assert [w.code for w in of(events, Warned)] == ["snapshot_memory"]
    with_free_memory(monkeypatch, 2 * size)
    trainer.context.begin()
    assert trainer.context.rollback.possible
    end(trainer)
