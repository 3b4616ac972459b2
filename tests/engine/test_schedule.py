"""The learning rate of each step, against its closed form."""

import math
import tracemalloc

import numpy as np
import pytest

from mptui.config.schema import TrainingConfig
from mptui.engine.optim.schedule import Schedule, scaled_lr

SPE = 10


def table(total, peak=1.0, steps_per_epoch=SPE, **training):
    return Schedule(TrainingConfig(**training), peak, total, steps_per_epoch).rates(
        0, total + steps_per_epoch + 1
    )


def test_cosine_falls_from_the_peak_to_zero():
    rates = table(100, peak=0.4)
    expected = [0.4 * 0.5 * (1 + math.cos(math.pi * step / 100)) for step in range(101)]
    np.testing.assert_allclose(rates[:101], expected, rtol=1e-6, atol=1e-9)
    assert rates[0] == np.float32(0.4)
    assert rates[50] == pytest.approx(0.2)
    assert rates[99] > 0
    assert (rates[100:] == 0).all()


def test_warm_up_rises_linearly_and_wastes_no_step():
    rates = table(100, warmup_epochs=2.0, warmup_max_fraction=1.0)
    np.testing.assert_allclose(rates[:20], np.arange(1, 21) / 21, rtol=1e-6)
    assert rates[20] == 1.0
    decay = [0.5 * (1 + math.cos(math.pi * step / 80)) for step in range(81)]
    np.testing.assert_allclose(rates[20:101], decay, rtol=1e-5, atol=1e-7)


def test_warm_up_counts_in_fractions_of_an_epoch():
    assert np.flatnonzero(table(100, warmup_epochs=0.35) == 1.0)[0] == 4


def test_a_run_that_is_all_warm_up_never_passes_the_peak():
    rates = table(5, warmup_epochs=3.0, warmup_max_fraction=1.0)
    np.testing.assert_allclose(rates[:5], np.arange(1, 6) / 6, rtol=1e-6)
    assert (rates <= 1).all()


def test_warm_up_takes_at_most_its_share_of_a_short_run():
    rates = table(50, warmup_epochs=5.0)  # as long as the run itself
    np.testing.assert_allclose(rates[:5], np.arange(1, 6) / 6, rtol=1e-6)
    assert rates[5] == 1.0
    assert rates[49] < 0.01
    assert np.flatnonzero(table(30, warmup_epochs=5.0, warmup_max_fraction=0.2) == 1.0)[0] == 6
    assert table(9, warmup_epochs=5.0)[0] == 1.0  # a tenth of nine steps is none


def test_step_schedule_drops_after_each_so_many_epochs():
    rates = table(70, schedule="step", step_epochs=3, step_gamma=0.1)
    np.testing.assert_allclose(rates[:70], [0.1 ** (step // 30) for step in range(70)], rtol=1e-6)


def test_step_schedule_counts_from_the_end_of_the_warm_up():
    rates = table(100, schedule="step", step_epochs=3, step_gamma=0.5, warmup_epochs=1.0)
    np.testing.assert_allclose(rates[10:40], 1.0)
    np.testing.assert_allclose(rates[40:70], 0.5)


def test_constant_stays():
    assert (table(30, schedule="constant", peak=0.25) == 0.25).all()


@pytest.mark.parametrize("name", ["cosine", "step", "constant"])
def test_planned_rates_go_from_now_to_the_end(name):
    schedule = Schedule(TrainingConfig(schedule=name, warmup_epochs=1.0), 0.3, 4000, SPE)
    planned = schedule.planned(10, 12)
    assert [planned[0][0], planned[-1][0]] == [12, schedule.total_steps + 2]
    for step, rate in planned:
        assert rate == pytest.approx(schedule.rate_at(int(step) - 2), rel=1e-3)
    assert len(schedule.planned(schedule.total_steps, schedule.total_steps)) == 1


@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_there_is_a_rate_for_an_epoch_more_than_planned(schedule):
    rates = table(95, schedule=schedule, warmup_epochs=1.0)
    assert len(rates) > 95 + SPE
    assert np.isfinite(rates).all()
    assert (rates >= 0).all()


@pytest.mark.parametrize(("scaling", "expected"), [("linear", 0.1 * 4), ("sqrt", 0.1 * 2), ("off", 0.1)])
def test_the_rate_follows_the_effective_batch(scaling, expected):
    training = TrainingConfig(lr=0.1, lr_scaling=scaling, lr_batch_size=64, batch_size=32, accumulate=8)
    assert scaled_lr(training) == pytest.approx(expected)


def test_without_a_batch_that_the_rate_was_chosen_for_nothing_is_scaled():
    assert scaled_lr(TrainingConfig(lr=0.1, batch_size=4096)) == 0.1


def test_the_cost_of_a_schedule_does_not_grow_with_its_steps():
    schedule = Schedule(TrainingConfig(warmup_epochs=1.0), 1.0, 10**15, 5000)
    tracemalloc.start()
    rates = [schedule.rates(position) for position in (0, 10**9, 10**15 + 5000)]
    planned = schedule.planned(10**9, 10**9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6
    assert rates[1][0] == np.float32(schedule.rate_at(10**9))
    assert (rates[2] == 0).all()
    assert planned[-1] == [10**15, 0.0]
