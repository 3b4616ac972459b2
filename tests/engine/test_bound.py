"""Bottlenecks of real runs: slow data, many small kernels, or computation."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mptui.engine.reporting.advice import NO_BETTER
from mptui.events import Advice, Step
from tests.engine.blots import Blot
from tests.engine.small import build_trainer, config, end, of, small_net


@dataclass(frozen=True)
class Sleeping(Blot):
    """A file on a slow disk."""

    def read(self, side_hint=None):
        time.sleep(0.004)
        return super().read(side_hint)


@dataclass(frozen=True)
class Laborious(Blot):
    """A sample whose transform takes much CPU time."""

    def read(self, side_hint=None):
        noise = np.random.default_rng(0).random((150, 150))
        for _ in range(10):
            noise = noise @ noise / 75
        return super().read(side_hint)


class Computes(torch.nn.Module):
    """A layer that takes 20 ms, far more than launching it, on any machine."""

    def forward(self, images_BCHW):
        time.sleep(0.02)
        return images_BCHW


def slow_net():
    return torch.nn.Sequential(Computes(), small_net())


def deep_net():
    """Return a network of many layers that compute next to nothing, on any machine."""
    return torch.nn.Sequential(*[torch.nn.Identity() for _ in range(300)], small_net())


def verdict(folder, *, kind=Blot, model=None, batch=8, cached=False):
    run = config(training={"epochs": 2, "batch_size": batch}, data={"augment": "none"})
    trainer, events = build_trainer(
        run, folder, model=model, train=6 * batch, cache="device" if cached else "off", reads_as=kind
    )
    try:
        trainer.train()
    finally:
        end(trainer)
    return of(events, Step)[-1], of(events, Advice)


def test_a_slow_disk_holds_the_steps_back(tmp_path):
    last, advice = verdict(tmp_path, kind=Sleeping)

    assert last.bound_by == "data"
    assert "wait for data" in advice[-1].message
    assert last.split["data"] > last.split["forward"]
    assert min(last.split[part] for part in ("forward", "backward", "optimizer")) > 0
    # the loader alone is no faster than now; without data wait, the steps would be
    assert last.ceilings["data"] <= 250
    assert last.ceilings["steps"] > last.ceilings["data"]


def test_a_network_whose_layers_take_long_is_bound_by_computing(tmp_path):
    last, advice = verdict(tmp_path, model=slow_net(), cached=True)

    assert last.bound_by == "compute"
    assert advice == []
    assert set(last.ceilings) == {"steps"}  # nothing is read: the data is on the device


@pytest.mark.parametrize(("precision", "told"), [("bf16", 1), ("fp32", 0)])
def test_a_run_in_16_bits_that_grows_no_better_is_told_how_to_compare(tmp_path, precision, told):
    run = config(training={"epochs": NO_BETTER + 2, "lr": 1e-20, "batch_size": 16})
    trainer, events = build_trainer(run, tmp_path, precision=precision, train=16)
    try:
        trainer.train()
    finally:
        end(trainer)

    advice = [event for event in of(events, Advice) if event.code == "no_better"]
    assert len(advice) == told
    assert all("mptui parity" in event.message for event in advice)
    (plateau,) = [event for event in of(events, Advice) if event.code == "plateau"]
    assert plateau.setting == "training.lr=1e-21"


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(30))
def test_the_verdict_is_right_each_time(tmp_path, number):
    assert verdict(tmp_path / "a", kind=Sleeping)[0].bound_by == "data"
    assert verdict(tmp_path / "b", kind=Laborious)[0].bound_by == "data"
    assert verdict(tmp_path / "c", model=deep_net(), batch=1, cached=True)[0].bound_by == "launch"
    assert verdict(tmp_path / "d", model=slow_net(), cached=True)[0].bound_by == "compute"
