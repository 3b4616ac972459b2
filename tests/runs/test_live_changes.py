"""A setting that is changed during a run acts on the steps after it: the weights become others.

Each run is compared with one in which a setting that acts on no weight is changed at the same step, so that
the change of settings as such makes no difference.
"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from mptui.config.switch import fixed_because
from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.trainer import Trainer
from mptui.events import CommandAnswered, PresetSwitched, Step
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.planning.switch_job import build_switch

BASE = {
    "model.name": "unet",
    "model.width": 4,
    "model.depth": 1,
    "data.name": "shapes",
    "data.image_size": 16,
    "data.samples": 32,
    "data.workers": 0,
    "precision.mode": "fp32",
    "training.batch_size": 8,
    "training.epochs": 2,
    "training.optimizer": "sgd",
    "logging.step_interval_s": 0,
    "logging.pictures": 0,
    "guards.numerics": "off",
    "hardware.device": "cpu",
}
RUNS: dict[str, dict[str, object]] = {
    "sgd": {},
    "scaled": {"training.lr_batch_size": 64},
    "adamw": {"training.optimizer": "adamw", "training.lr": 1e-3},
    "bf16": {"precision.mode": "bf16"},
    "classes": {"model.name": "resnet18", "data.samples": 16, "training.batch_size": 4, "training.epochs": 1},
}
INERT = "checkpoint.keep=3"
CHANGES = {
    "training.batch_size": ("sgd", "4"),
    "training.accumulate": ("sgd", "2"),
    "training.lr": ("sgd", "0.02"),
    "training.lr_scaling": ("scaled", "sqrt"),
    "training.lr_batch_size": ("scaled", "32"),
    "training.layer_decay": ("sgd", "0.5"),
    "training.head_lr_scale": ("sgd", "3"),
    "training.momentum": ("sgd", "0.5"),
    "training.nesterov": ("sgd", "true"),
    "training.weight_decay": ("sgd", "0.1"),
    "training.betas": ("adamw", "[0.5, 0.9]"),
    "training.eps": ("adamw", "0.1"),
    "training.clip_grad_norm": ("sgd", "0.001"),
    "training.freeze": ("sgd", "backbone"),
    "training.loss": ("sgd", "dice"),
    "training.class_weights": ("sgd", "[1.0, 4.0, 1.0, 1.0]"),
    "training.label_smoothing": ("classes", "0.3"),
    "data.augment": ("sgd", "none"),
    "data.sampler": ("classes", "balanced"),
    "data.mixup_alpha": ("classes", "0.5"),
    "data.cutmix_alpha": ("classes", "0.5"),
    "precision.mode": ("sgd", "bf16"),
    "precision.fp32_layers": ("bf16", '["*"]'),
    "memory.micro_batch": ("sgd", "3"),
}


def trained(kind: str, setting: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train with a change after the second step; return the losses up to it, and the weights at the end."""
    unet_only = {"model.width", "model.depth"} if kind == "classes" else set()
    given = {key: value for key, value in (BASE | RUNS[kind]).items() if key not in unet_only}
    flags = {key: ("test", value) for key, value in given.items()}
    plan = plan_run(Request(None, flags, (), os.environ))
    mailbox = Mailbox()
    losses: list[float] = []
    told: list[object] = []

    def emit(event: object) -> None:
        told.append(event)
        if isinstance(event, Step):
            losses.append(event.loss)
            if event.step == 2:
                mailbox.post(Command("set", setting))

    made = prepare(plan, emit=emit, mailbox=mailbox, on_bad=lambda _: None, force_compile=False)
    plans = [made.loaders.plan]
    with TemporaryDirectory() as folder:
        saver = Saver(Path(folder), lambda: plans[-1].config.checkpoint, emit)

        def rebuild(command: Command) -> ProfileSwitch:
            fresh, switch = build_switch(plans[-1], made, trainer.context.job, command, Path(folder), emit)
            return replace(switch, accept=lambda: plans.append(fresh))

        with saver:
            trainer = Trainer(made.job, emit=emit, mailbox=mailbox, saver=saver, rebuild=rebuild)
            trainer.train()
            trainer.close()
    refused = [event.detail for event in told if isinstance(event, CommandAnswered)]
    assert sum(isinstance(event, PresetSwitched) for event in told) == 1, refused
    return losses[:2], {name: each.clone() for name, each in trainer.context.model.state_dict().items()}


@cache
def unchanged(kind: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    return trained(kind, INERT)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=pytest.mark.slow if kind == "classes" else ())
        for key, (kind, _) in CHANGES.items()
    ],
)
def test_a_change_acts_on_the_steps_after_it(key):
    assert fixed_because(key) == ""
    kind, value = CHANGES[key]
    losses, weights = trained(kind, f"{key}={value}")
    losses_without, weights_without = unchanged(kind)
    assert losses == losses_without
    assert any(not torch.equal(each, weights_without[name]) for name, each in weights.items())


def test_a_change_that_acts_on_no_weight_changes_none():
    _, weights = trained("sgd", "checkpoint.keep=4")
    assert all(torch.equal(each, unchanged("sgd")[1][name]) for name, each in weights.items())
