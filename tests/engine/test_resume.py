"""A stopped and resumed run equals an uninterrupted one bit for bit."""

import math
from typing import Any

import pytest
import torch

from mptui.data import reading
from mptui.data.cache_policy import CacheMode
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import never_saved, read_newest
from mptui.engine.mailbox import Stopped
from mptui.errors import ConfigError, RunDirectoryError
from mptui.events import EpochFinished, Event, PhaseChanged, Step, Validated, Warned
from tests import program
from tests.decoders import forks_of
from tests.engine.resuming import assert_the_same, bits, each_step
from tests.engine.small import NoiseNet, build_trainer, config, end, losses, of, small_net

CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw": {"training": {"optimizer": "adamw", "lr": 0.01}},
    "adamw not fused": {"training": {"optimizer": "adamw", "lr": 0.01}, "speed": {"fused": False}},
    "sgd not fused": {"speed": {"fused": False}},
    "lion": {"training": {"optimizer": "lion", "lr": 0.001, "betas": [0.9, 0.95]}},
    "schedule free": {"training": {"optimizer": "adamw_schedule_free", "warmup_epochs": 0.5, "lr": 0.01}},
    "muon": {"training": {"optimizer": "muon", "lr": 0.01}},
    "average": {"training": {"ema_decay": 0.8}},
    "accumulate": {"training": {"accumulate": 3, "batch_size": 4}},
    "warm-up and step": {
        "training": {"warmup_epochs": 0.5, "schedule": "step", "step_epochs": 1, "clip_grad_norm": 0.1}
    },
    # grows every other step, so that it overflows, backs off and skips
    "fp16": {"precision": {"grad_scaler": {"init_scale": 2.0**22, "growth_interval": 2}}},
    "patience": {"training": {"epochs": 9, "lr": 1e-9, "early_stopping_patience": 2}},
    "thawed": {"training": {"optimizer": "adamw", "lr": 0.01, "freeze": 1, "ema_decay": 0.8}},
    "thawed, schedule free": {"training": {"optimizer": "adamw_schedule_free", "lr": 0.01, "freeze": 1}},
    "thawed, not fused": {
        "training": {"optimizer": "adamw", "lr": 0.01, "freeze": 1, "layer_decay": 0.7},
        "speed": {"fused": False},
    },
    "max_steps": {"training": {"epochs": 9, "max_steps": 5}},
    "from memory": {},
    "changed views": {"data": {"augment": ["crop", "trivial", "cutout"]}},
    "diffusion": {
        "training": {"optimizer": "adamw", "lr": 0.001, "accumulate": 2, "batch_size": 4, "epochs": 1}
    },
}
NO_OTHER_STATE = {
    "sgd", "adamw not fused", "lion", "muon", "thawed, schedule free", "from memory", "changed views"
}  # fmt: skip
"""The parts of their states are those of the others, or they are stopped below: in the slow suite."""


def build(folder, case, workers=0, dropout=0.0, device="cpu"):
    precision = "fp16" if case == "fp16" else "fp32"
    model = small_net(dropout=dropout) if case != "diffusion" else NoiseNet()
    run = config(**CASES[case])
    cache: CacheMode = "ram" if case == "from memory" else "off"
    task: str | None = "diffusion" if case == "diffusion" else None
    return build_trainer(
        run,
        folder,
        precision=precision,
        model=model,
        train=22,
        val=8,
        workers=workers,
        cache=cache,
        task=task,
        device=torch.device(device),
    )


def undisturbed(folder, case, dropout=0.0, device="cpu"):
    trainer, events = build(folder, case, dropout=dropout, device=device)
    trainer.train()
    end(trainer)
    return trainer, events


def stopped_again_and_again(folder, case, stop_at, workers=0, dropout=0.0, device="cpu"):
    """Stop at the first event that satisfies `stop_at`, rebuild everything, resume from disk."""
    told: set[int] = set()
    history: list[Event] = []
    while True:
        trainer, events = build(folder, case, workers, dropout, device)
        if history:
            snapshot, complaints = read_newest(folder)
            assert complaints == []
            snapshots.restore(trainer.state, snapshot)

        def stop(event, trainer=trainer):
            where = stop_at(event)
            if where is not None and where not in told:
                told.add(where)
                trainer.context.mailbox.stop(None)

        events.then = stop
        try:
            trainer.train()
        except Stopped:
            history += events
            end(trainer)
            continue
        end(trainer)
        return trainer, history + events, len(told)


def each_validation(event):
    return event.step if isinstance(event, PhaseChanged) and event.phase == "validating" else None


ON_A_GPU = ["adamw", "average", "fp16", "thawed", "diffusion"]


@pytest.mark.parametrize(
    ("case", "device"),
    [
        *(pytest.param(case, "cpu", marks=[pytest.mark.slow] * (case in NO_OTHER_STATE)) for case in CASES),
        *(pytest.param(case, "cuda", marks=pytest.mark.gpu) for case in ON_A_GPU),
    ],
)
def test_stopped_after_every_step_it_ends_with_the_same_bits(tmp_path, case, device):
    if device == "cuda":
        torch.use_deterministic_algorithms(True)
    more = {"dropout": 0.5 if case == "adamw" else 0.0, "device": device}
    trainer, events = undisturbed(tmp_path / "whole", case, **more)
    resumed, resumed_events, stops = stopped_again_and_again(tmp_path / "parts", case, each_step, **more)
    assert stops == len(losses(events)) == trainer.state.step
    assert_the_same((trainer, events), (resumed, resumed_events))


def test_the_fp16_case_does_skip_steps(tmp_path):
    trainer, _ = undisturbed(tmp_path, "fp16")
    assert 0 < trainer.context.reporter.totals.skipped < trainer.state.step


def test_the_patience_case_does_stop_early(tmp_path):
    trainer, events = undisturbed(tmp_path, "patience")
    assert trainer.state.cursor.epoch == 3
    assert [w.code for w in of(events, Warned)] == ["early_stop"]


def test_dropout_does_drop(tmp_path):
    with_dropout = undisturbed(tmp_path / "with", "sgd", dropout=0.5)[1]
    without = undisturbed(tmp_path / "without", "sgd")[1]
    assert losses(with_dropout) != losses(without)


def test_stopped_in_every_validation_it_ends_with_the_same_bits(tmp_path):
    trainer, events = undisturbed(tmp_path / "whole", "average")
    resumed, resumed_events, stops = stopped_again_and_again(tmp_path / "parts", "average", each_validation)
    assert stops == 2
    assert_the_same((trainer, events), (resumed, resumed_events))


@pytest.mark.parametrize("case", ["sgd", "from memory", "changed views"])
def test_two_workers_and_stops_give_the_bits_of_none(tmp_path, case, monkeypatch):
    if case == "changed views":
        monkeypatch.setattr(reading, "start", forks_of(program.server()))  # they import torch
    trainer, events = undisturbed(tmp_path / "whole", case)
    resumed, resumed_events, stops = stopped_again_and_again(
        tmp_path / "parts", case, lambda event: each_step(event) if event.step in {2, 5} else None, workers=2
    )
    assert stops == 2
    assert_the_same((trainer, events), (resumed, resumed_events))


def test_a_run_whose_patience_was_out_when_it_was_killed_takes_no_further_step(tmp_path):
    trainer, _ = undisturbed(tmp_path, "patience")
    resumed, events = build(tmp_path, "patience")
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    resumed.train()
    end(resumed)
    assert resumed.state.step == trainer.state.step
    assert losses(events) == []


def test_a_restored_best_is_only_beaten_by_a_better_one(tmp_path):
    trainer, _ = undisturbed(tmp_path, "sgd")
    resumed, _ = build(tmp_path, "sgd")
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    assert resumed.state.best == trainer.state.best
    assert math.isfinite(resumed.state.best.value)
    end(resumed)


@pytest.mark.parametrize("case", ["adamw", "adamw not fused"])
def test_another_optimizer_is_refused(tmp_path, case):
    undisturbed(tmp_path, "sgd")
    other, _ = build(tmp_path, case)
    with pytest.raises(ConfigError, match="optimizer"):
        snapshots.restore(other.state, read_newest(tmp_path)[0])
    end(other)


def test_another_model_is_refused(tmp_path):
    undisturbed(tmp_path, "sgd")
    other, _ = build_trainer(config(), tmp_path, model=small_net(norm=False))
    with pytest.raises(RunDirectoryError, match="does not fit"):
        snapshots.restore(other.state, read_newest(tmp_path)[0])
    end(other)


def test_a_snapshot_does_not_follow_the_training(tmp_path):
    trainer, events = build(tmp_path, "average")
    taken = []
    events.then = lambda event: taken.append(snapshots.take(trainer.state)) if each_step(event) == 2 else None
    trainer.train()
    end(trainer)
    (snapshot,) = taken
    weights = dict(trainer.context.model.named_parameters())
    assert not torch.equal(snapshot.tensors["model"]["0.weight"], weights["0.weight"])
    assert (trainer.state.cursor.epoch, snapshot.state["cursor"]["sample"]) == (2, 16)


def test_stopped_between_two_micro_batches_the_window_is_as_if_it_had_not_begun(tmp_path):
    """Stops inside a window of three micro-batches: with partial BatchNorm, metrics and gradients."""
    trainer, events = undisturbed(tmp_path / "whole", "accumulate")
    seen = 0

    def build_and_stop(folder, case, workers=0, dropout=0.0):
        stopping, told = build(folder, case)
        whole = stopping.context.parts.precision.backward

        def stop_in_the_middle(loss):
            nonlocal seen
            whole(loss)
            seen += 1
            if seen in {2, 6, 10}:
                stopping.context.mailbox.stop(None)

        vars(stopping.context.parts.precision)["backward"] = stop_in_the_middle
        return stopping, told

    history: list[Event] = []
    stops = 0
    while True:
        parts, told = build_and_stop(tmp_path / "parts", "accumulate")
        if stops:
            snapshots.restore(parts.state, read_newest(tmp_path / "parts")[0])
        try:
            parts.train()
        except Stopped:
            stops += 1
            history += told
            end(parts)
            continue
        end(parts)
        break
    assert stops == 3
    assert_the_same((trainer, events), (parts, history + told))


def ended_at(folder, steps, epochs=3):
    """Run 5 steps per epoch to the end, or resume and end, after so many steps."""
    training = {"epochs": epochs, "max_steps": steps, "schedule": "constant"}
    trainer, events = build_trainer(config(training=training), folder, model=small_net(dropout=0.5))
    if not never_saved(folder):
        snapshots.restore(trainer.state, read_newest(folder)[0])
    trainer.train()
    end(trainer)
    return trainer, events


@pytest.mark.parametrize("first", [5, 7, pytest.param(8, marks=pytest.mark.slow)])
def test_a_run_that_ended_in_an_epochs_middle_goes_on_with_the_rest_of_it(tmp_path, first):
    whole, events = ended_at(tmp_path / "whole", 13)
    ended_at(tmp_path / "parts", first)
    longer, more = ended_at(tmp_path / "parts", 13)
    assert bits(longer.context.model.state_dict()) == bits(whole.context.model.state_dict())
    assert longer.state.cursor == whole.state.cursor
    assert (longer.state.cursor.epoch, longer.state.cursor.sample) == (2, 24)
    second = [[e.train_metrics for e in of(told, EpochFinished) if e.epoch == 2] for told in (events, more)]
    assert second[0] == second[1]


def test_a_run_that_ended_in_an_epochs_middle_is_done_when_it_is_resumed_as_it_was(tmp_path):
    ended_at(tmp_path, 7)
    again, events = ended_at(tmp_path, 7)
    assert again.state.step == 7
    assert not of(events, Validated)
    assert not of(events, Step)


def test_an_epochs_middle_tries_no_patience(tmp_path):
    ended_at(tmp_path, 7)
    trainer, _ = ended_at(tmp_path, 8)
    assert trainer.state.best.epochs_since <= 1


def test_no_memory_while_restoring_is_told_as_that(tmp_path, monkeypatch):
    trainer, _ = build_trainer(config(training={"max_steps": 2}), tmp_path)
    trainer.train()
    end(trainer)
    again, _ = build_trainer(config(training={"max_steps": 4}), tmp_path)

    def full(_state):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(again.context.model, "load_state_dict", full)
    with pytest.raises(torch.OutOfMemoryError):
        snapshots.restore(again.state, read_newest(tmp_path)[0])
    end(again)
