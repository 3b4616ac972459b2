"""A batch with non-finite numbers is left out: bit for bit the run whose order lacks it."""

import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

from mptui.engine.guards import divergence
from mptui.events import Diagnosed, Recovered, Warned
from tests.engine.guards.sick import bits, leave_out, poison
from tests.engine.small import build_trainer, config, end, of, small_net

slow = partial(pytest.param, marks=pytest.mark.slow)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.02},
    "adamw": {"optimizer": "adamw", "lr": 0.005},
}
EPOCHS, SAMPLES = 2, 36


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def windows(accumulate, batch_size):
    size = accumulate * batch_size
    return [(epoch, start) for epoch in range(EPOCHS) for start in range(0, SAMPLES, size)]


def trained(folder, *, bad, without, optimizer, fused, precision, accumulate, interval_s=0.0, dropout=0.0):
    run = config(
        training={"epochs": EPOCHS, "batch_size": 4, "accumulate": accumulate, "ema_decay": 0.9}
        | OPTIMIZERS[optimizer],
        speed={"fused": fused},
        logging={"step_interval_s": interval_s},
        guards={"snapshot_every": 4},
        # so often that the scale grows between, before and at the bad batches
        precision={"grad_scaler": {"init_scale": 256.0, "growth_interval": 5}},
    )
    trainer, events = build_trainer(
        run, folder, precision=precision, train=SAMPLES, val=8, model=small_net(dropout=dropout)
    )
    if without:
        leave_out(trainer, bad)
    else:
        # the last batch of the window: the effects of the good ones before it must be undone
        poison(
            trainer.context.job.train_loader, {(epoch, start + 4 * (accumulate - 1)) for epoch, start in bad}
        )
    trainer.train()
    end(trainer)
    return trainer, events


def assert_as_left_out(folder, bad, **settings):
    injected, events = trained(folder / "injected", bad=bad, without=False, **settings)
    reference, _ = trained(folder / "reference", bad=bad, without=True, **settings)
    assert bits(injected) == bits(reference)
    assert injected.context.parts.updater.position() == reference.context.parts.updater.position()
    assert injected.context.parts.precision.state_dict() == reference.context.parts.precision.state_dict()
    assert injected.context.job.precision == reference.context.job.precision
    assert all(t.isfinite().all() for t in injected.context.model.state_dict().values())
    told = [e for e in of(events, Recovered) if e.problem == "bad batch"]
    assert len(told) == len(bad) == len([e for e in of(events, Diagnosed) if e.where == "input"])
    return injected, events


CASES = list(
    itertools.product(["fp32", "bf16", "fp16"], OPTIMIZERS, [True, False], [1, 3]),
)
PAIRS = [
    ("fp16", "sgd", True, 3),
    ("fp32", "adamw", False, 1),
    slow("fp32", "sgd", True, 1),
    slow("bf16", "adamw", True, 1),
    slow("bf16", "sgd", False, 3),
    slow("fp32", "adamw", False, 3),
    slow("fp16", "adamw", False, 1),
]
"""Of any two settings, each pair of values; in two cases, each value."""


@pytest.mark.parametrize(("precision", "optimizer", "fused", "accumulate"), PAIRS)
def test_bad_batches_end_in_the_bits_of_an_order_without_them(
    tmp_path, precision, optimizer, fused, accumulate
):
    numbers = random.Random(repr((precision, optimizer, fused, accumulate)))
    bad = numbers.sample(windows(accumulate, 4), 4 if accumulate == 1 else 3)
    assert_as_left_out(
        tmp_path, bad, precision=precision, optimizer=optimizer, fused=fused, accumulate=accumulate
    )


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("precision", "optimizer", "fused", "accumulate"), CASES)
def test_bad_batches_at_many_random_steps(tmp_path, precision, optimizer, fused, accumulate, seed):
    numbers = random.Random(seed)
    places = windows(accumulate, 4)
    bad = numbers.sample(places, numbers.randint(1, len(places) // 2))
    assert_as_left_out(
        tmp_path, bad, precision=precision, optimizer=optimizer, fused=fused, accumulate=accumulate
    )


PLAIN: dict[str, Any] = {"precision": "fp16", "optimizer": "sgd", "fused": True, "accumulate": 1}


@pytest.mark.slow
def test_many_in_a_row_are_no_divergence_while_their_images_are_to_blame(tmp_path):
    bad = windows(1, 4)[5:12]
    injected, _ = assert_as_left_out(tmp_path, bad, **PLAIN)
    assert injected.state.step == len(windows(1, 4))


def test_rows_that_are_read_late_change_nothing(tmp_path):
    bad = windows(1, 4)[5:12] + windows(1, 4)[16:17]
    late, _ = assert_as_left_out(tmp_path / "late", bad, interval_s=3600.0, **PLAIN)
    soon, _ = trained(tmp_path / "soon", bad=bad, without=False, **PLAIN)
    assert bits(late) == bits(soon)
    assert late.state.step == soon.state.step == len(windows(1, 4))  # many in a row are no divergence


def test_dropout_goes_on_as_if_the_batch_had_never_been(tmp_path):
    assert_as_left_out(tmp_path, windows(1, 4)[3:4], dropout=0.5, **PLAIN)


def test_the_files_of_the_bad_images_are_named(tmp_path):
    _, events = trained(tmp_path, bad=[(0, 8)], without=False, **PLAIN)
    (found,) = of(events, Diagnosed)
    (told,) = of(events, Recovered)
    assert (found.where, found.problem, found.step) == ("input", "bad batch", 3)
    (name,) = found.files
    assert name.startswith("blot ")
    assert name in told.action


def test_a_data_set_full_of_bad_images_is_told_of_once_and_no_longer_file_by_file(tmp_path, monkeypatch):
    monkeypatch.setattr(divergence, "MOST_DIAGNOSED", 4)
    trainer, events = trained(tmp_path, bad=windows(1, 4)[::3], without=False, **PLAIN)
    assert len(of(events, Recovered)) == len(of(events, Diagnosed)) == 4
    assert [w.code for w in of(events, Warned)] == ["bad_batches", "skipped_steps"]
    assert trainer.context.reporter.totals.skipped == 6


@pytest.mark.slow
def test_other_batches_would_have_ended_elsewhere(tmp_path):
    one, _ = trained(tmp_path / "one", bad=[(0, 8)], without=True, **PLAIN)
    other, _ = trained(tmp_path / "other", bad=[(0, 12)], without=True, **PLAIN)
    assert bits(one) != bits(other)
