"""A resume takes state from the checkpoint, and settings from the configuration and the new request."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mptui.config.keys import nested
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.guards.divergence import NanGuard
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError
from mptui.events import Step
from tests.engine.small import build_trainer, config, end, of, small_net

FLAT = {"training.schedule": "constant", "training.max_steps": 3, "logging.step_interval_s": 3600.0}


def nan_guard(trainer: Trainer) -> NanGuard:
    guard = trainer.context.hooks["nan"]
    assert isinstance(guard, NanGuard)
    return guard


def group(trainer: Trainer, name: str) -> Any:
    return trainer.context.parts.optimizer.param_groups[0][name]


# setting, value in the run, requested value, and value that the trainer then uses
TAKEN: list[tuple[str, Any, Any, Callable[[Trainer], Any]]] = [
    ("training.lr", 0.05, 0.01, lambda t: pytest.approx(float(t.context.parts.schedule.rates(0)[0]))),
    ("training.momentum", 0.9, 0.5, lambda t: group(t, "momentum")),
    ("training.weight_decay", 1e-4, 0.5, lambda t: group(t, "weight_decay")),
    ("training.clip_grad_norm", None, 2.0, lambda t: t.context.parts.updater._clip),
    ("training.clip_grad_norm", 2.0, None, lambda t: t.context.parts.updater._clip),
    ("training.label_smoothing", 0.0, 0.25, lambda t: vars(t.context.task)["label_smoothing"]),
    (
        "training.ema_decay",
        0.5,
        0.75,
        lambda t: t.context.parts.average and vars(t.context.parts.average)["decay"],
    ),
    ("training.ema_decay", 0.5, None, lambda t: t.context.parts.average),
    ("training.max_steps", 3, 4, lambda t: t.context.parts.schedule_steps),
    ("memory.micro_batch", None, 4, lambda t: t.context.micro_batches.limits["training"]),
    ("memory.micro_batch", 4, 2, lambda t: t.context.micro_batches.limits["training"]),
    ("memory.micro_batch", 4, None, lambda t: t.context.micro_batches.limits["training"]),
    ("guards.max_recoveries", 8, 3, lambda t: nan_guard(t)._fallbacks.budget),
    ("guards.max_skipped_streak", 50, 7, lambda t: nan_guard(t)._detector.max_streak),
    (
        "precision.grad_scaler.init_scale",
        64.0,
        8.0,
        lambda t: t.state.scaler.state_dict()["scale"],
    ),
    (
        "precision.grad_scaler.growth_factor",
        2.0,
        4.0,
        lambda t: t.state.scaler.state_dict()["growth_factor"],
    ),
    ("precision.grad_scaler.min_scale", 1.0, 4.0, lambda t: t.context.parts.precision.floor),
    ("logging.step_interval_s", 3600.0, 1800.0, lambda t: t.context.reporter.interval_s),
    ("checkpoint.every_steps", None, 2, lambda t: t.context.saver._config().every_steps),
]


def trainer_with(folder, settings, *, seed=0, device_name=""):
    precision = "fp16" if any("scaler" in key for key in settings) else "fp32"
    run = config(**nested(FLAT | settings))
    trainer, events = build_trainer(run, folder, precision=precision, model=small_net(seed=seed))
    job = replace(trainer.context.job, device_name=device_name)
    trainer.state.job = trainer.state.given = job
    return trainer, events


def resumed(folder, before, now, **others):
    """Run 3 steps with some settings; return a trainer that resumes it with others, before its start."""
    first, _ = trainer_with(folder, before, device_name="small card")
    first.train()
    end(first)
    second, events = trainer_with(folder, now, seed=1, **{"device_name": "small card", **others})
    snapshots.restore(second.state, read_newest(folder)[0])
    return first, second, events


@pytest.mark.parametrize(("key", "had", "asked", "found"), TAKEN, ids=[f"{k} {a}" for k, _, a, _ in TAKEN])
def test_a_setting_that_is_asked_for_at_a_resume_is_in_force(tmp_path, key, had, asked, found):
    _, second, _ = resumed(tmp_path, {key: had}, {key: asked})
    end(second)
    assert asked == found(second)


def test_the_optimizers_state_stays_with_another_setting(tmp_path):
    first, second, _ = resumed(tmp_path, {}, {"training.momentum": 0.5})
    end(second)
    buffers = [
        [state["momentum_buffer"] for state in trainer.context.parts.optimizer.state.values()]
        for trainer in (first, second)
    ]
    assert all(torch.equal(one, other) for one, other in zip(*buffers, strict=True))


def test_an_average_that_begins_at_a_resume_begins_with_the_weights_of_the_checkpoint(tmp_path):
    _, second, _ = resumed(tmp_path, {}, {"training.ema_decay": 0.9999})
    end(second)
    assert second.context.parts.average is not None
    average = second.context.parts.average.state_dict()
    assert all(torch.equal(average[name], weight) for name, weight in second.context.model.named_parameters())


def test_a_loss_scale_that_nobody_asks_for_is_the_checkpoints(tmp_path):
    scaler = {"precision.grad_scaler.init_scale": 2.0**60, "precision.grad_scaler.backoff_factor": 1e-15}
    first, second, _ = resumed(tmp_path, scaler, scaler)
    end(second)
    scale = second.context.parts.precision.state_dict()["scale"]
    assert scale == first.context.parts.precision.state_dict()["scale"] < 2.0**60


def with_a_limit(folder, now, **others):
    """Return the trainer of a run that ran out of memory at 4 samples."""
    first, _ = trainer_with(folder, {}, device_name="small card")
    first.context.micro_batches.limits |= {"training": 4, "validating": 2}
    first.train()
    end(first)
    second, _ = trainer_with(folder, now, **others)
    snapshots.restore(second.state, read_newest(folder)[0])
    end(second)
    return second.context.micro_batches.limits


def test_a_limit_that_was_met_holds_on_the_same_device(tmp_path):
    assert with_a_limit(tmp_path, {}, device_name="small card") == {"training": 4, "validating": 2}


def test_a_limit_that_a_small_card_had_is_not_a_large_ones(tmp_path):
    assert with_a_limit(tmp_path, {}, device_name="large card") == {"training": None, "validating": None}


def test_a_micro_batch_is_looked_for_where_that_is_asked_now(tmp_path):
    trainer, _ = trainer_with(tmp_path, {}, device_name="small card")
    trainer.train()
    end(trainer)
    asked = {"memory.micro_batch": "auto", "training.max_steps": 4}
    second, _ = trainer_with(tmp_path, asked, device_name="small card")
    snapshots.restore(second.state, read_newest(tmp_path)[0])
    tried: list[int] = []

    def fits_half(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        tried.append(len(inputs[0]))
        if len(inputs[0]) > 4:
            raise torch.OutOfMemoryError("no room")

    second.context.model.register_forward_pre_hook(fits_half)
    second.train()
    end(second)
    assert second.context.micro_batches.limits["training"] == 3


@pytest.mark.parametrize(
    ("asked", "factor"), [({}, 0.25), ({"training.lr": 0.02}, 1.0), ({"training.momentum": 0.5}, 0.25)]
)
def test_a_rate_that_is_asked_for_is_not_the_one_that_a_divergence_led_to(tmp_path, asked, factor):
    first, _ = trainer_with(tmp_path, {})
    fallbacks = nan_guard(first)._fallbacks
    fallbacks.lr_factor, fallbacks.moves = 0.25, ["a quarter of the rate"]
    first.train()
    end(first)
    second, _ = trainer_with(tmp_path, asked)
    snapshots.restore(second.state, read_newest(tmp_path)[0])
    end(second)
    assert second.context.job.config.training.lr == factor * asked.get("training.lr", 0.05)


def test_another_batch_size_goes_on_after_the_samples_that_were_seen(tmp_path):
    asked = {"training.batch_size": 4, "training.max_steps": 5, "logging.step_interval_s": 0.0}
    _, second, events = resumed(tmp_path, {}, asked)
    assert (second.state.cursor.sample, second.state.cursor.epoch_step) == (24, 6)
    second.train()
    end(second)
    assert [step.epoch_step for step in of(events, Step)] == [7, 8]
    assert second.state.cursor.sample == 32


def test_a_checkpoint_that_does_not_fit_what_is_asked_for_names_the_setting(tmp_path):
    trainer, _ = trainer_with(tmp_path, {})
    trainer.train()
    end(trainer)
    run = config(**nested({**FLAT, "data.image_size": 64}))
    other, _ = build_trainer(run, tmp_path, model=small_net(norm=False))
    with pytest.raises(ConfigError, match="does not fit") as raised:
        snapshots.restore(other.state, read_newest(tmp_path)[0])
    end(other)
    assert "data.image_size" in raised.value.hint
