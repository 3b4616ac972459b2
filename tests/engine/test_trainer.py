"""Control flow of a run: when it ends, which commands it handles, and the order of its events."""

import math
import signal
import threading
from dataclasses import replace

import pytest
import torch

from mptui.engine.checkpoint import saver
from mptui.engine.checkpoint.files import checkpoints, read_checkpoint
from mptui.engine.mailbox import Command, Stopped
from mptui.engine.optim import guarded_step
from mptui.engine.optim.buffers import RevertibleBuffers
from mptui.engine.progress import Best
from mptui.errors import DataError, DivergedError
from mptui.events import (
    Advice,
    CheckpointSaved,
    CommandAnswered,
    EpochFinished,
    EpochStarted,
    MemorySample,
    Paused,
    PhaseChanged,
    Progress,
    Resumed,
    Step,
    StepSkipped,
    Validated,
    Warned,
)
from mptui.testing.optimizer import HostReads
from tests.engine.small import build_trainer, config, end, losses, of, small_net

DEADLINE_S = 30.0


def trained(folder, *, then=None, model=None, train=40, precision="fp32", **tables):
    trainer, events = build_trainer(config(**tables), folder, model=model, train=train, precision=precision)
    events.then = then(trainer) if then is not None else None
    try:
        trainer.train()
    finally:
        end(trainer)
    return trainer, events


class Exploding(torch.nn.Module):
    """A net whose outputs are NaN in the training forward passes with a number in `bad` (from 0)."""

    def __init__(self, bad):
        super().__init__()
        self.net, self.bad, self.count = small_net(), bad, 0

    def forward(self, images):
        outputs = self.net(images)
        if self.training:
            outputs = outputs * (math.nan if self.count in self.bad else 1.0)
            self.count += 1
        return outputs


def test_it_tells_what_it_does_in_order(tmp_path):
    _, events = trained(tmp_path, training={"epochs": 2})
    told = [
        e.phase if isinstance(e, PhaseChanged) else e.kind
        for e in events
        if not isinstance(e, (Advice, CheckpointSaved, MemorySample, Progress))
    ]
    epoch = ["step"] * 5 + ["validating", "validated", "epoch_finished"]
    first = ["epoch_started", "warming_up", "training", *epoch]
    assert told[: len(first)] == first
    assert told[len(first) :] == ["epoch_started", "training", *epoch, "saving", "validating", "finished"]
    assert [e.step for e in of(events, Step)] == list(range(1, 11))
    assert [e.epoch for e in of(events, EpochFinished)] == [1, 2]
    began = [(e.epoch, e.first_step, e.steps, e.total_steps) for e in of(events, EpochStarted)]
    assert began == [(1, 0, 5, 10), (2, 0, 5, 10)]
    ended = of(events, EpochFinished)[0]
    assert 0 < (ended.training_s or 0) < ended.seconds


def test_it_learns(tmp_path):
    trainer, events = trained(tmp_path, training={"epochs": 6, "lr": 0.05}, data={"augment": "none"})
    finished = of(events, EpochFinished)
    assert finished[-1].train_loss < 0.5 * finished[0].train_loss
    assert finished[-1].val_metrics["acc1"] > 0.9
    assert trainer.context.outcome.final["val_loss"] == finished[-1].val_loss


def test_max_steps_ends_it_in_the_middle_of_an_epoch_with_a_validation(tmp_path):
    trainer, events = trained(tmp_path, training={"epochs": 9, "max_steps": 7})
    assert trainer.state.step == len(losses(events)) == 7
    assert [e.epoch for e in of(events, Validated)] == [1, 2]
    assert of(events, Step)[-1].lr < of(events, Step)[0].lr / 10  # the schedule ends there too


def test_a_step_never_waits_for_the_device(tmp_path, monkeypatch):
    # as where an answer would have to be waited for
    monkeypatch.setattr(
        guarded_step, "RevertibleBuffers", lambda model, sync: RevertibleBuffers(model, sync=False)
    )

    def reads(samples):
        with HostReads() as counted:
            trained(
                tmp_path,
                train=samples,
                training={"epochs": 1, "ema_decay": 0.9, "clip_grad_norm": 1.0},
                logging={"step_interval_s": 3600.0},
            )
        return counted.count

    assert reads(80) == reads(16)


# -- early stopping


@pytest.mark.parametrize("patience", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_it_stops_after_so_many_epochs_without_a_better_metric(tmp_path, patience):
    training = {"epochs": 9, "lr": 1e-9, "early_stopping_patience": patience}
    trainer, events = trained(tmp_path, training=training)
    assert trainer.state.cursor.epoch == 1 + patience
    assert [w.code for w in of(events, Warned)] == ["early_stop"]


def test_nan_is_worse_than_anything():
    best = Best("acc1")
    assert not best.offer(math.nan, 1)
    assert best.offer(0.1, 2)
    assert not best.offer(math.nan, 3)
    assert not best.offer(0.1, 4)
    assert (best.value, best.epoch, best.epochs_since) == (0.1, 2, 2)
    assert best.offer(0.2, 5)
    assert best.epochs_since == 0


def test_of_losses_the_smaller_one_is_better():
    best = Best("val_loss")
    assert [best.offer(value, epoch) for epoch, value in enumerate((2.0, math.nan, 1.5, 1.5, 1.0), 1)] == [
        *(True, False, True, False, True)
    ]
    again = Best("val_loss")
    again.load_state_dict(best.state_dict())
    assert not again.offer(1.1, 6)
    assert (again.value, again.epoch) == (1.0, 5)


def test_the_primary_metric_decides_which_epoch_is_best_and_is_the_first(tmp_path):
    _, events = trained(tmp_path / "f1", training={"epochs": 2, "primary_metric": "macro_f1"})
    first, *_ = validated = of(events, Validated)
    assert next(iter(first.metrics)) == first.primary == "macro_f1"
    better = validated[1].metrics["macro_f1"] > first.metrics["macro_f1"]
    assert [each.best for each in validated] == [True, better]
    _, events = trained(tmp_path / "loss", training={"epochs": 3, "primary_metric": "val_loss"})
    found = [each.loss for each in of(events, Validated)]
    assert [each.best for each in of(events, Validated)] == [
        *(loss < min(found[:epoch], default=math.inf) for epoch, loss in enumerate(found))
    ]


# -- gradients that are not finite


def test_a_bad_step_is_skipped_told_and_survived(tmp_path):
    trainer, events = trained(tmp_path, model=Exploding({2, 3}))
    assert [e.step for e in of(events, StepSkipped)] == [3, 4]
    assert [e.streak for e in of(events, StepSkipped)] == [1, 2]
    assert [math.isnan(loss) for loss in losses(events)] == [False] * 2 + [True] * 2 + [False] * 6
    assert trainer.context.parts.updater.position() == 8
    assert all(t.isfinite().all() for t in trainer.context.model.state_dict().values())
    assert math.isfinite(of(events, EpochFinished)[0].train_loss)


def test_a_streak_of_bad_steps_is_divergence(tmp_path):
    with pytest.raises(DivergedError, match="3 steps in a row") as caught:
        trained(tmp_path, model=Exploding(range(4, 99)), guards={"on_nan": "stop"})
    assert "--lr" in caught.value.hint


def test_bad_steps_that_are_no_streak_are_none(tmp_path):
    trainer, _ = trained(tmp_path, model=Exploding(range(0, 99, 2)), guards={"max_skipped_streak": 2})
    assert trainer.context.reporter.totals.skipped == 5


def test_with_checked_batches_the_first_bad_loss_ends_it(tmp_path):
    with pytest.raises(DivergedError, match="step 3: the loss is nan"):
        trained(tmp_path, model=Exploding({2}), guards={"check_batches": True})


def test_with_checked_batches_a_label_beyond_the_classes_is_named(tmp_path):
    trainer, _ = build_trainer(config(guards={"check_batches": True}), tmp_path)
    trainer.state.job = replace(trainer.context.job, num_classes=2)
    with pytest.raises(DataError, match="targets from 0 to 2, but there are 2 classes"):
        trainer.train()
    end(trainer)


# -- commands


def test_a_stop_saves_first(tmp_path):
    def then(trainer):
        return lambda event: trainer.context.mailbox.stop(signal.SIGTERM) if event.step == 3 else None

    with pytest.raises(Stopped) as caught:
        trained(tmp_path, then=then)
    assert caught.value.signal == signal.SIGTERM
    assert read_checkpoint(checkpoints(tmp_path)[-1]).step == 3


def test_a_checkpoint_on_demand_is_on_the_disk_when_it_is_answered(tmp_path):
    found: list[int] = []

    def then(trainer):
        def watch(event):
            if isinstance(event, Step) and event.step == 2:
                trainer.context.mailbox.post(Command("checkpoint"))
            if isinstance(event, CommandAnswered) and event.state == "done":
                found.extend(read_checkpoint(path).step for path in checkpoints(tmp_path))

        return watch

    _, events = trained(tmp_path, then=then)
    assert found == [2]
    assert [(e.command, e.state) for e in of(events, CommandAnswered)] == [
        ("checkpoint", "taken"),
        ("checkpoint", "done"),
    ]
    assert of(events, CheckpointSaved)[0].reason == "asked"


def test_a_validation_on_demand_changes_nothing_in_the_run(tmp_path):
    def then(trainer):
        def watch(event):
            if isinstance(event, Step) and event.step in {2, 7}:
                trainer.context.mailbox.post(Command("validate"))

        return watch

    training = {"training": {"ema_decay": 0.5}}
    _, undisturbed = trained(tmp_path / "one", **training)
    trainer, events = trained(tmp_path / "two", then=then, **training)
    assert losses(events) == losses(undisturbed)
    assert not of(events, Validated)[0].best
    assert [e.step for e in of(events, Validated)] == [2, 5, 7, 10]
    assert trainer.context.model.training


def test_a_preset_is_refused_where_there_is_none(tmp_path):
    def then(trainer):
        def watch(event):
            if isinstance(event, Step) and event.step == 2:
                trainer.context.mailbox.post(Command("preset", "fast"))

        return watch

    _, events = trained(tmp_path, then=then)
    assert [(e.state, e.detail) for e in of(events, CommandAnswered)] == [
        ("taken", ""),
        ("refused", "this run has no other profiles"),
    ]
    assert len(losses(events)) == 10


class Watched:
    """A run in a separate thread, whose events the test waits for."""

    def __init__(self, folder, at_step):
        self.trainer, self.events = build_trainer(config(), folder)
        self._changed = threading.Condition()
        self.events.then = self._note
        self._at_step = at_step
        self.thread = threading.Thread(target=self._train)
        self.stopped = False

    def _note(self, event):
        if isinstance(event, Step) and event.step == self._at_step:
            self.trainer.context.mailbox.post(Command("pause"))
        with self._changed:
            self._changed.notify_all()

    def _train(self):
        try:
            self.trainer.train()
        except Stopped:
            self.stopped = True

    def __enter__(self):
        self.thread.start()
        self.wait_for(Paused)
        return self

    def __exit__(self, *error):
        self.trainer.context.mailbox.stop(None)
        self.thread.join(DEADLINE_S)
        end(self.trainer)

    def wait_for(self, kind, matches=lambda event: True):
        """Wait for such an event."""

        def come():
            return any(isinstance(e, kind) and matches(e) for e in list(self.events))

        with self._changed:
            assert self._changed.wait_for(come, DEADLINE_S), f"no {kind.__name__} came"

    def do(self, command):
        """Post a command, and wait until it is executed."""
        self.trainer.context.mailbox.post(Command(command))
        self.wait_for(CommandAnswered, lambda e: (e.command, e.state) == (command, "done"))


def test_no_step_is_taken_while_it_is_paused(tmp_path):
    with Watched(tmp_path, at_step=3) as run:
        # each reply shows another iteration of the loop
        run.do("checkpoint")
        run.do("validate")
        run.do("checkpoint")
        assert run.trainer.state.step == 3
        assert [e.phase for e in of(run.events, PhaseChanged)][-1] == "paused"
        run.do("resume")
        run.wait_for(PhaseChanged, lambda e: e.phase == "finished")
        run.thread.join(DEADLINE_S)
    assert run.trainer.state.step == 10
    (paused,), (resumed,) = of(run.events, Paused), of(run.events, Resumed)
    between = run.events[run.events.index(paused) : run.events.index(resumed)]
    assert of(between, Step) == []
    _, undisturbed = trained(tmp_path / "other")
    assert losses(run.events) == losses(undisturbed)


def test_a_paused_run_can_be_stopped(tmp_path):
    with Watched(tmp_path, at_step=2) as run:
        pass
    assert run.stopped
    assert read_checkpoint(checkpoints(tmp_path)[-1]).step == 2


# -- saving


@pytest.mark.parametrize("interval_s", [pytest.param(0.0, marks=pytest.mark.slow), 3600.0])
def test_it_saves_every_so_many_steps_however_rarely_it_reports(tmp_path, interval_s):
    _, events = trained(
        tmp_path,
        train=80,
        checkpoint={"every_steps": 4, "keep": 9},
        training={"epochs": 1},
        logging={"step_interval_s": interval_s},
    )
    assert [e.step for e in of(events, CheckpointSaved) if e.reason == "steps"] == [4, 8]


def test_it_saves_as_often_as_is_asked_by_time_however_rarely_it_reports(tmp_path):
    checkpoint, logging = {"every_minutes": 1e-9, "keep": 20}, {"step_interval_s": 3600.0}
    _, events = trained(tmp_path, train=80, checkpoint=checkpoint, training={"epochs": 1}, logging=logging)
    assert [e.step for e in of(events, CheckpointSaved) if e.reason == "time"] == list(range(1, 11))


def test_a_best_that_had_to_wait_is_written_as_soon_as_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "_SHARE", 1e12)

    def then(trainer):
        def steer(event):
            if isinstance(event, Step) and event.step == 2:
                trainer.context.mailbox.post(Command("checkpoint"))
            if isinstance(event, Step) and event.step == 7:
                monkeypatch.setattr(saver, "_SHARE", 0)
            if isinstance(event, Step) and event.step == 8:
                trainer.context.saver.wait_until_saved()

        return steer

    _, events = trained(tmp_path, then=then)
    assert [(e.step, e.reason) for e in of(events, CheckpointSaved)][:2] == [(2, "asked"), (5, "best")]
    told = [e for e in events if isinstance(e, (CheckpointSaved, Validated))]
    assert [e.kind for e in told[:4]] == ["checkpoint_saved", "validated", "checkpoint_saved", "validated"]


def test_the_end_is_saved_and_leads_the_way(tmp_path):
    trainer, events = trained(tmp_path)
    assert "end" in {e.reason for e in of(events, CheckpointSaved)}
    assert read_checkpoint(tmp_path / "last").step == trainer.state.step
    best = read_checkpoint(tmp_path / "best")
    assert best.state["best"]["epoch"] == trainer.state.best.epoch
