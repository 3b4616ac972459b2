"""Advice in real runs whose bottleneck is known, at default settings of reports: it is taken, and helps.

What takes long sleeps, many times as long as the rest of a run computes: no verdict depends on the machine.
"""

import os
import sys
import time

import pytest
import torch

from mptui.events import Advice, Step
from mptui.registry import own_code
from mptui.registry.optimizers import OPTIMIZERS, OptimizerSpec
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from tests.made.runs import plan_of

REPORTS = 300
"""Reports of steps, two a second, after which a run that has not got its outcome is given up."""

DATA = """
import time
import numpy as np

class Fast:
    classes = ["dark", "bright"]
    train_s = val_s = 0.0
    sizes = 4096, 16
    def __init__(self, train):
        self.sleeps, self.size = (self.train_s, self.sizes[0]) if train else (self.val_s, self.sizes[1])
    def __len__(self):
        return self.size
    def __getitem__(self, number):
        time.sleep(self.sleeps)
        return np.full((16, 16, 3), 60 + 100 * (number % 2), np.uint8), number % 2

class Sleeps(Fast):
    train_s = 0.05

class ValSleeps(Fast):
    val_s = 0.05
    sizes = 64, 32
"""
NETWORK = """
from torch import nn

def small(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, num_classes))
"""


class Slow(torch.optim.SGD):
    """An optimizer whose update takes 50 ms."""

    def step(self, closure=None):
        time.sleep(0.05)
        return super().step(closure)


@pytest.fixture
def _slow_optimizer(monkeypatch):
    spec = OptimizerSpec(build=lambda groups, lr, fused: Slow(groups, float(lr)), state_bytes=0)
    monkeypatch.setitem(OPTIMIZERS, "slow", spec)


@pytest.fixture
def _known_code(tmp_path, monkeypatch):
    for name, code in {"known_data": DATA, "known_network": NETWORK}.items():  # workers import no torch
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(own_code, "_folders", [])


def run_of(tmp_path, data, sets):
    flags = {
        "model.name": "known_network:small",
        "data.name": f"known_data:{data}",
        "data.image_size": 16,
        "data.cache": "off",
        "data.workers": 1,
        "hardware.device": "cpu",
        "precision.mode": "fp32",
        "speed.channels_last": False,  # not by trial
        "training.batch_size": 8,
        "training.epochs": 1000,
        **sets,
    }
    return Session(plan_of(flags, trust_code=True), create_run(tmp_path, "test", "net", None))


@pytest.mark.slow
@pytest.mark.usefixtures("_slow_optimizer", "_known_code")
@pytest.mark.parametrize(
    ("data", "sync_s", "sets", "code", "key", "words"),
    [
        ("Sleeps", 0, {}, "data_bound", "data.workers", "CPUs are idle"),
        ("Fast", 1.0, {"checkpoint.every_steps": 2}, "saving_bound", "checkpoint.every_steps", "of the time"),
        (
            "Fast",
            0,
            {"training.optimizer": "slow"},
            "optimizer_bound",
            "training.accumulate",
            "the optimizer takes",
        ),
        ("ValSleeps", 0, {}, "validation", "data.workers", "of each epoch"),
    ],
)
def test_what_is_known_to_hold_a_run_up_is_named_and_mended_by_its_remedy(
    tmp_path, monkeypatch, data, sync_s, sets, code, key, words
):
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(sync_s))  # of a slow disk
    session = run_of(tmp_path, data, sets)
    heard, given, told, reports = session.listen(), None, [], 0
    session.start()
    while not session.finished:
        heard.wait(0.1)
        for event in heard.drain():
            told += [event] if isinstance(event, Advice) else []
            reports += isinstance(event, Step)
            if isinstance(event, Advice) and given is None and event.code == code:
                given = event
                session.send("set", event.setting)
            if isinstance(event, Advice) and event.code == "outcome":
                session.send("stop")
        if reports > REPORTS:
            session.send("stop")
    assert given is not None
    assert given.setting is not None
    assert given.setting.startswith(f"{key}=")
    assert words in given.message
    assert "about" in given.message
    outcome = next(event for event in told if event.code == "outcome")
    print("OUT", outcome.message, reports)
    assert f"{given.setting} has helped" in outcome.message
    assert outcome.setting is None
    assert len({(each.code, each.setting) for each in told}) == len(told)
