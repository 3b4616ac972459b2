"""Batches without a target, with a loss of a person's own: left out of the training and of the validation."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mptui.data.types import IGNORE, Decoded
from mptui.engine.epochs import validate
from mptui.events import EpochFinished, Warned
from mptui.tasks.own_loss import OwnTask
from tests.engine.blots import SIDE, Scene
from tests.engine.small import build_trainer, config, end, of

VAL = 5


@dataclass(frozen=True)
class Sometimes(Scene):
    """A scene whose mask ignores every pixel if its index is even."""

    def read(self, side_hint: int | None = None) -> Decoded:
        whole = Scene(4 * self.index).read()
        if self.index % 2:
            return whole
        return replace(whole, mask_HW=np.full((SIDE, SIDE), IGNORE, np.int16))


@dataclass(frozen=True)
class Never(Scene):
    """A scene without a target in the validation."""

    def read(self, side_hint: int | None = None) -> Decoded:
        whole = Scene(4 * self.index).read()
        if self.index < 10_000:
            return whole
        return replace(whole, mask_HW=np.full((SIDE, SIDE), IGNORE, np.int16))


def own_loss(outputs, targets):
    """NaN without a target, as torch's own."""
    return F.cross_entropy(outputs, targets, ignore_index=IGNORE)


def trainer_of(folder, kind, accumulate=1):
    run = config(training={"epochs": 2, "batch_size": 1, "accumulate": accumulate})
    trainer, events = build_trainer(run, folder / "run", kind=kind, train=8, val=VAL)
    base = trainer.context.task
    task = OwnTask("own_loss", own_loss, None, base.primary, base=base, module=None)
    job = replace(trainer.context.job, task=task)
    trainer.state.job = trainer.state.given = job
    return trainer, events


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_without_a_target_is_left_out_of_the_validation_too(tmp_path, accumulate):
    trainer, events = trainer_of(tmp_path, Sometimes, accumulate)
    trainer.train()
    measured = validate(trainer.context)
    expected = []
    for (batch,) in trainer.context.job.val_loader.windows(0, 1):
        if bool((batch.targets != IGNORE).any()):
            with torch.no_grad():
                outputs = trainer.context.model.eval()(*batch.inputs)
            expected.append(float(F.cross_entropy(outputs.float(), batch.targets, ignore_index=-1)))
    end(trainer)
    assert 0 < len(expected) < VAL
    assert measured.loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert all(math.isfinite(told.val_loss or 0.0) for told in of(events, EpochFinished))
    assert trainer.state.best.epoch > 0
    assert trainer.context.reporter.totals.skipped == 0


def test_a_run_that_could_score_no_epoch_says_so(tmp_path):
    trainer, events = trainer_of(tmp_path, Never)
    trainer.train()
    end(trainer)
    assert math.isnan(trainer.context.outcome.final["val_loss"])
    (told,) = [event.message for event in of(events, Warned) if event.code == "unscored"]
    assert "no best checkpoint" in told
