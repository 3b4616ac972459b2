"""The loss scale: its floor, its changes, and its events."""

import json
import math
from typing import Any

import pytest
import torch

from mptui.config.schema import GradScalerConfig
from mptui.engine.guards.detector import FALLS, SEARCH_STEPS, ScalerHealth
from mptui.engine.precision import ScaledPrecision
from mptui.engine.reporting.reporter import StepRow
from mptui.events import LossScale
from tests.engine.guards.sick import Steep, gain_net
from tests.engine.small import CPU, build_trainer, config, end, of

FINITE, NAN = torch.zeros(()), torch.tensor(math.nan)


def scaled(**numbers):
    """Return a scaler with one weight, and a step that gives it a finite gradient or not."""
    precision = ScaledPrecision(CPU, GradScalerConfig(**numbers))
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def step(bad: bool, loss: torch.Tensor = FINITE) -> float:
        weight.grad = None
        precision.backward(weight * (math.inf if bad else 1.0))
        precision.unscale(optimizer)
        precision.update(loss)
        scale = precision.loss_scale()
        assert scale is not None
        return float(scale)

    return precision, step


def test_the_scale_never_falls_below_its_floor():
    _, step = scaled(init_scale=64.0, min_scale=16.0)
    assert [step(True) for _ in range(200)] == [32.0] + [16.0] * 199


def test_where_the_loss_is_not_finite_the_scale_is_not_to_blame():
    precision, step = scaled(init_scale=64.0, growth_interval=3)
    assert [step(False), step(False)] == [64.0, 64.0]
    before = precision.state_dict()
    assert [step(True, NAN) for _ in range(50)] == [64.0] * 50
    assert precision.state_dict() == before
    assert step(False) == 128.0


def test_another_scale_counts_good_steps_anew():
    precision, step = scaled(init_scale=64.0, growth_interval=2)
    step(False)
    precision.set_scale(8.0)
    assert [step(False), step(False)] == [8.0, 16.0]


def rows(kinds, scales):
    for number, (kind, scale) in enumerate(zip(kinds, scales, strict=True), 1):
        yield StepRow(number, 1, number, 8, 0, 1.0, 1.0, kind == "skip", scale, 0.1)


def seen(kinds, scales, **numbers):
    health = ScalerHealth(lambda: GradScalerConfig(**numbers))
    for row in rows(kinds, scales):
        health.update([row])
    return health


def test_its_figures_are_told_when_something_happened():
    kinds = ["good", "skip", "skip", "good", "skip", "good"]
    health = seen(kinds, [1024.0, 512.0, 256.0, 256.0, 128.0, 256.0], init_scale=1024.0)
    told = health.news(6)
    assert told is not None
    assert (told.scale, told.lowest, told.highest) == (256.0, 128.0, 1024.0)
    assert (told.growths, told.backoffs, told.skipped) == (1, 3, 3)
    assert (told.streak, told.longest_streak, told.skip_rate) == (0, 2, 0.5)
    assert list(health.moves) == [(2, 512.0), (3, 256.0), (5, 128.0), (6, 256.0)]
    assert health.news(6) is None


@pytest.mark.parametrize("size", [1, 2, 6])
def test_it_makes_no_difference_how_many_rows_are_read_at_once(size):
    kinds = ["good", "skip", "skip", "good", "good", "skip", "good", "good", "good"]
    scales = [1024.0, 512.0, 256.0, 256.0, 256.0, 128.0, 128.0, 128.0, 256.0]
    health, read = ScalerHealth(lambda: GradScalerConfig(init_scale=1024.0)), list(rows(kinds, scales))
    for first in range(0, len(read), size):
        health.update(read[first : first + size])
    assert health.state_dict() == seen(kinds, scales, init_scale=1024.0).state_dict()


def test_a_scale_that_keeps_falling_gets_advice_once():
    good = SEARCH_STEPS
    scales = [2.0**40] * good + [2.0 ** (40 - n) for n in range(1, FALLS + 1)]
    health = seen(["good"] * good + ["skip"] * FALLS, scales, init_scale=2.0**40)
    advice = health.advice(9, bf16=True)
    assert advice is not None
    assert (advice.code, advice.setting) == ("loss_scale_falls", "precision.mode=bf16")
    assert health.advice(9, bf16=True) is None


def test_the_search_at_the_start_is_no_sinking():
    health = seen(["skip"] * 16, [2.0 ** (16 - n) for n in range(1, 17)])
    assert health.advice(16, bf16=True) is None


def test_a_scale_that_never_grows_gets_a_shorter_interval():
    kinds = (["good"] * 9 + ["skip"]) * 10
    health = seen(kinds, [1024.0] * 100, init_scale=1024.0, growth_interval=50)
    advice = health.advice(100, bf16=False)
    assert advice is not None
    assert (advice.code, advice.setting) == (
        "loss_scale_never_grows",
        "precision.grad_scaler.growth_interval=5",
    )


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_scale_at_which_most_steps_overflow_gets_no_shorter_interval(good):
    kinds = (["good"] * good + ["skip"]) * 40
    health = seen(kinds, [1024.0] * len(kinds), init_scale=1024.0, growth_interval=20)
    advice = health.advice(100, bf16=False)
    assert advice is not None
    assert (advice.code, advice.setting) == ("loss_scale_too_high", "training.clip_grad_norm=1.0")


def test_a_healthy_scale_gets_none():
    kinds = (["good"] * 49 + ["skip"]) * 4
    scales: list[float] = []
    for _ in range(4):
        scales += [1024.0] * 25 + [2048.0] * 24 + [1024.0]
    assert seen(kinds, scales, init_scale=1024.0, growth_interval=25).advice(200, bf16=True) is None


def test_it_goes_on_from_a_state_as_a_checkpoint_keeps_it():
    kinds = ["good", "skip", "skip", "good"]
    scales = [1024.0, 512.0, 256.0, 256.0]
    whole = seen(kinds, scales, init_scale=1024.0)
    first = seen(kinds[:2], scales[:2], init_scale=1024.0)
    other = ScalerHealth(lambda: GradScalerConfig())
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for row in list(rows(kinds, scales))[2:]:
        other.update([row])
    assert other.state_dict() == whole.state_dict()


def test_a_run_tells_of_its_scale(tmp_path):
    scaler: dict[str, Any] = {"init_scale": 2.0**20, "growth_interval": 4}
    run = config(training={"lr": 1e-9, "epochs": 6}, precision={"grad_scaler": scaler})
    model = torch.nn.Sequential(gain_net(1.0), Steep(2.0**6))
    trainer, events = build_trainer(run, tmp_path, precision="fp16", model=model)
    trainer.train()
    end(trainer)
    told = of(events, LossScale)
    assert told[-1].backoffs > 2
    assert told[-1].growths > 0
    assert told[-1].skipped == trainer.context.reporter.totals.skipped
    assert told[-1].scale == trainer.context.parts.precision.state_dict()["scale"]


def test_a_run_without_a_scale_has_nothing_to_tell(tmp_path):
    trainer, events = build_trainer(config(), tmp_path, precision="bf16")
    trainer.train()
    end(trainer)
    assert of(events, LossScale) == []
