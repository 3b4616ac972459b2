"""What is told of an epoch whose steps were all skipped, and of one whose loss was not finite."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mptui.errors import DivergedError
from mptui.events import Advice, EpochFinished
from mptui.runs.view.specs import epoch_lines
from mptui.tasks.own_loss import OwnTask
from tests.engine.small import build_trainer, config, end, of

FAR_TOO_HIGH = 2.0**100


def test_a_run_in_fp16_whose_steps_are_all_skipped(tmp_path):
    run = config(training={"epochs": 2}, precision={"grad_scaler": {"init_scale": FAR_TOO_HIGH}})
    trainer, events = build_trainer(run, tmp_path, precision="fp16")
    before = {name: value.clone() for name, value in trainer.context.model.state_dict().items()}
    with pytest.raises(DivergedError, match="no step was applied: the gradients of all 10") as raised:
        trainer.train()
    end(trainer)
    assert raised.value.exit_code == 4
    assert "a lower precision.grad_scaler.init_scale" in str(raised.value.hint)
    assert trainer.context.reporter.totals.skipped == trainer.state.step == 10
    assert all(torch.equal(value, before[name]) for name, value in trainer.context.model.state_dict().items())
    for epoch in of(events, EpochFinished):
        assert epoch.samples_trained == 0
        (line,) = epoch_lines(epoch)
        assert "train: no step was applied  val: loss" in line
        assert "nan" not in line
    assert not [advice for advice in of(events, Advice) if "growth_interval" in (advice.setting or "")]


def never_finite(outputs, targets):
    """A loss of NaN, with a gradient that is finite."""
    return F.cross_entropy(outputs, targets) + math.nan


def test_a_loss_that_is_not_finite_in_steps_that_are_applied_is_told_as_a_loss(tmp_path):
    run = config(training={"epochs": 1}, guards={"on_nan": "ignore"})
    trainer, events = build_trainer(run, tmp_path)
    base = trainer.context.task
    task = OwnTask("never_finite", never_finite, None, base.primary, base=base, module=None)
    trainer.state.job = trainer.state.given = replace(trainer.context.job, task=task)
    trainer.train()
    end(trainer)
    assert trainer.context.reporter.totals.skipped == 0
    (epoch,) = of(events, EpochFinished)
    assert epoch.samples_trained == 40
    assert "train: loss nan" in epoch_lines(epoch)[0]
