"""A custom guard and a custom part of a checkpoint: each is a class and one line that adds it."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Stopped
from mptui.engine.reporting.reporter import StepRow
from mptui.engine.trainer import HOOKS, Trainer
from mptui.events import CheckpointSaved, Step
from tests.engine.small import build_trainer, config, end, losses, of

TARGET = 1.0


class LossBelow(Hook):
    """Stops a run once the loss of a step is below `TARGET`; remembers the lowest loss."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self.lowest = math.inf

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        self.lowest = min(self.lowest, *(row.loss for row in rows))

    def report_due(self) -> None:
        if self.lowest < TARGET:
            self._context.mailbox.stop(None)

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self.lowest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lowest = state_dict["lowest"]


class Counter:
    """A stateful part of a run, with a tensor and a number."""

    def __init__(self, seen: float = 0.0, sums: float = 0.0) -> None:
        self.seen, self.sums = seen, torch.full((2,), sums)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "sums": self.sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self.seen = state_dict["seen"]
            self.sums.copy_(state_dict["sums"])


@pytest.fixture
def _registered(monkeypatch):
    monkeypatch.setitem(HOOKS, "loss_below", LossBelow)


def lowest(trainer: Trainer) -> float:
    guard = trainer.context.hooks["loss_below"]
    assert isinstance(guard, LossBelow)
    return guard.lowest


def stopped(folder, **tables):
    trainer, events = build_trainer(config(training={"epochs": 40}, **tables), folder)
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    return trainer, events


@pytest.mark.usefixtures("_registered")
def test_a_guard_of_ones_own_stops_the_run_and_its_memory_comes_back(tmp_path):
    trainer, events = stopped(tmp_path)
    *before, last = losses(events)
    assert last < TARGET <= min(before)
    assert of(events, CheckpointSaved)[-1].reason == "stop"

    resumed, _ = build_trainer(config(training={"epochs": 40}), tmp_path)
    assert lowest(resumed) == math.inf
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    assert lowest(resumed) == lowest(trainer) == pytest.approx(last)
    end(resumed)


def test_a_checkpoint_and_a_run_may_know_other_guards(tmp_path, monkeypatch):
    plain, _ = build_trainer(config(), tmp_path / "plain")
    without = snapshots.take(plain.state)
    monkeypatch.setitem(HOOKS, "loss_below", LossBelow)
    guarded, _ = build_trainer(config(), tmp_path / "guarded")
    snapshots.restore(guarded.state, without)
    assert lowest(guarded) == math.inf
    snapshots.restore(plain.state, snapshots.take(guarded.state))
    end(plain)
    end(guarded)


def test_a_hook_that_is_off_is_called_at_no_moment(tmp_path, monkeypatch):
    class Off(LossBelow):
        @property
        def active(self) -> bool:
            return False

        def rows_read(self, rows: Sequence[StepRow]) -> None:
            raise AssertionError("it is off")

    monkeypatch.setitem(HOOKS, "loss_below", Off)
    trainer, events = build_trainer(config(), tmp_path)
    trainer.train()
    end(trainer)
    assert len(of(events, Step)) == 10


def test_what_is_stateful_in_the_state_is_in_its_checkpoints(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path)
    trainer.state.counter = Counter(seen=3, sums=5.0)  # type: ignore[attr-defined]
    trainer.context.save("asked")
    end(trainer)
    resumed, _ = build_trainer(config(), tmp_path)
    fresh = Counter()
    resumed.state.counter = fresh  # type: ignore[attr-defined]
    snapshot, _ = read_newest(tmp_path)
    snapshots.restore(resumed.state, snapshot)
    assert (fresh.seen, fresh.sums.tolist()) == (3, [5.0, 5.0])

    del snapshot.tensors["counter"], snapshot.state["counter"]  # as before the counter existed
    other, _ = build_trainer(config(), tmp_path)
    untouched = Counter(seen=1)
    other.state.counter = untouched  # type: ignore[attr-defined]
    snapshots.restore(other.state, snapshot)
    assert untouched.seen == 1
    end(resumed)
    end(other)
