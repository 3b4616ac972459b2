"""Each sample counts once in the metrics, whatever happens in a window or a validation."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.epochs import validate
from mptui.engine.reporting.reporter import AppliedMetrics
from mptui.events import EpochFinished
from mptui.tasks.classification import Accuracy
from tests.engine.blots import CLASSES, Blot, Scene
from tests.engine.guards.sick import poison
from tests.engine.small import NoiseNet, build_trainer, config, end, of, until_stopped

HOUR = 3600.0


def counted(trainer):
    return int(trainer.state.metrics.state_dict()["count"])


@pytest.mark.parametrize("how", ["asked for", "after an out of memory"])
def test_stopped_between_two_pieces_of_a_batch_each_sample_counts_once(tmp_path, how):
    asked = 4 if how == "asked for" else None
    run = config(training={"epochs": 1}, memory={"micro_batch": asked})

    def build():
        trainer, events = build_trainer(run, tmp_path)
        if asked is None:
            backward = trainer.context.parts.precision.backward

            def with_little_memory(loss):
                if trainer.context.micro_batches.limits["training"] is None:
                    raise torch.OutOfMemoryError("no room")
                backward(loss)

            vars(trainer.context.parts.precision)["backward"] = with_little_memory
        return trainer, events

    first, _ = build()
    until_stopped(first, 3 if asked else 1)
    second, events = build()
    snapshots.restore(second.state, read_newest(tmp_path)[0])
    sums: list[int] = []
    events.then = lambda event: sums.append(counted(second)) if isinstance(event, EpochFinished) else None
    second.train()
    end(second)
    assert sums == [40]


class _OutOfMemoryIn(TorchFunctionMode):
    """Runs out of memory in one torch function, at its first call."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ == self.name:
            self.name = ""
            raise torch.OutOfMemoryError("no room")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "function"),
    [(Blot, "topk"), (Blot, "cat"), (Blot, "scatter_add_"), (Scene, "amax"), (Scene, "scatter_add_")],
)
def test_a_validation_whose_metrics_did_not_fit_counts_each_sample_once(
    tmp_path, kind, function, monkeypatch
):
    monkeypatch.setattr("mptui.tasks.classification._MOST_WAITING", 2)
    trainer, _ = build_trainer(config(), tmp_path, kind=kind, val=40)
    whole = validate(trainer.context)
    with _OutOfMemoryIn(function):
        again = validate(trainer.context)
    end(trainer)
    assert trainer.context.micro_batches.limits["validating"] == 4
    assert again.metrics == pytest.approx(whole.metrics)
    assert again.loss == pytest.approx(whole.loss)


def test_a_training_whose_metrics_did_not_fit_counts_each_sample_once(tmp_path, monkeypatch):
    monkeypatch.setattr("mptui.tasks.classification._MOST_WAITING", 2)
    run = config(training={"epochs": 1}, logging={"step_interval_s": HOUR})
    trainer, events = build_trainer(run, tmp_path)
    sums: list[int] = []
    events.then = lambda event: sums.append(counted(trainer)) if isinstance(event, EpochFinished) else None
    with _OutOfMemoryIn("topk"):
        trainer.train()
    end(trainer)
    assert sums == [40]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_refused_batch_leaves_diffusions_training_figures_whole(tmp_path, precision):
    run = config(training={"epochs": 1, "batch_size": 8}, logging={"step_interval_s": HOUR})
    trainer, events = build_trainer(
        run, tmp_path, model=NoiseNet(), task="diffusion", precision=precision, train=24
    )
    poison(trainer.context.job.train_loader, {(0, 16)})
    trainer.train()
    end(trainer)
    assert trainer.context.reporter.totals.skipped >= 1
    (told,) = of(events, EpochFinished)
    assert math.isfinite(told.train_metrics["r2"])


def test_a_validation_whose_outputs_are_not_finite_is_told_as_such(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path, model=NoiseNet(), task="diffusion", val=16)
    poison(trainer.context.job.val_loader, {(0, 8)})
    assert math.isnan(validate(trainer.context).metrics["r2"])
    end(trainer)


def epoch_sums(trainer, events):
    """Train, and return the state of the training metrics at the end of each epoch."""
    states = []
    events.then = lambda event: (
        states.append(trainer.state.metrics.state_dict()) if isinstance(event, EpochFinished) else None
    )
    trainer.train()
    end(trainer)
    return states


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (Blot, 40),  # counted apart
        (Scene, 1 << 20),  # kept until the end of the step
        pytest.param(Blot, 1 << 20, marks=pytest.mark.slow),
        pytest.param(Scene, 40, marks=pytest.mark.slow),
    ],
)
def test_a_refused_window_adds_nothing_to_the_training_metrics(tmp_path, monkeypatch, kind, most):
    monkeypatch.setattr("mptui.engine.reporting.reporter.MOST_NUMBERS", most)
    run = config(training={"epochs": 1, "batch_size": 4, "accumulate": 2, "lr": 1e-9})

    def figures(bad):
        trainer, events = build_trainer(run, tmp_path, kind=kind)
        poison(trainer.context.job.train_loader, bad)
        (state,) = epoch_sums(trainer, events)
        assert trainer.context.reporter.totals.skipped == len(bad)
        return state, of(events, EpochFinished)[0].train_metrics

    whole, _ = figures(set())
    state, told = figures({(0, 16)})  # and so the samples from 16 to 23
    assert all(math.isfinite(value) for value in told.values())
    left, all_of_them = (each["count" if kind is Blot else "confusion"] for each in (state, whole))
    assert int(left.sum()) < int(all_of_them.sum())
    if kind is Blot:
        assert int(left) == 32
    else:
        assert bool((left <= all_of_them).all())


def test_metrics_of_ones_own_count_the_applied_steps_alone(tmp_path):
    run = config(training={"epochs": 1})
    trainer, _ = build_trainer(run, tmp_path)
    trainer.state.window_metrics = AppliedMetrics(own := HitRate(), HitRate)
    poison(trainer.context.job.train_loader, {(0, 16)})
    trainer.train()
    end(trainer)
    assert int(own.state_dict()["count"]) == 32


class HitRate(Accuracy):
    """Metrics that know nothing of refused steps."""

    def __init__(self):
        super().__init__(len(CLASSES), torch.device("cpu"))
