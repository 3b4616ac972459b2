import math
import pickle
from functools import partial

import numpy as np
import pytest

from mptui.runs.view.history import History

slow = partial(pytest.param, marks=pytest.mark.slow)


def filled(count, value=lambda i: 1.0, capacity=64):
    history = History(capacity)
    for i in range(count):
        history.append(i, value(i))
    return history


@pytest.mark.parametrize("count", [10, 64, 65, 5000, 100_000])
def test_a_spike_of_one_step_is_never_lost(count):
    spike = count // 3
    history = filled(count, lambda i: 900.0 if i == spike else 1.0)
    columns = history.columns(0, count - 1, 40)
    assert np.nanmax(columns.high) == 900.0
    assert np.nanargmax(columns.high) == pytest.approx(spike / count * 40, abs=2)
    assert np.nanmin(columns.low) == 1.0


def test_memory_is_that_of_the_first_step():
    sizes = [len(pickle.dumps(filled(count))) for count in (3, 200_000)]
    assert sizes == pytest.approx([sizes[0]] * 2, abs=100)  # numbers have more digits


def test_the_mean_is_exact_after_merges():
    history = filled(1000, float, capacity=16)
    assert history.columns(0, 999, 1).mean[0] == pytest.approx(499.5)


def test_steps_with_gaps_keep_their_place():
    history = History(16)
    for step in (0, 1_000_000):
        history.append(step, float(step))
    columns = history.columns(0, 1_000_000, 10)
    assert columns.mean[0] == 0
    assert columns.mean[9] == 1_000_000
    assert np.isnan(columns.mean[1:9]).all()


def test_nan_and_infinity_are_marked_and_change_no_value():
    history = filled(10)
    history.append(10, math.nan)
    history.append(11, math.inf)
    columns = history.columns(0, 11, 12)
    assert columns.broken.tolist() == [False] * 10 + [True, True]
    assert np.isnan(columns.high[10:]).all()
    assert np.nanmax(columns.high) == 1.0


def test_a_step_that_falls_back_joins_its_bucket():
    history = filled(10)
    history.append(3, 7.0)
    assert history.columns(0, 9, 10).high.tolist()[3] == 7.0
    assert history.last == 7.0


def test_aggregated_values_keep_their_extremes():
    history = History()
    history.append(12, 1.0, low=0.5, high=40.0)
    columns = history.columns(0, 12, 1)
    assert (columns.low[0], columns.mean[0], columns.high[0]) == (0.5, 1.0, 40.0)


def test_tail_gives_the_latest_values():
    assert filled(200, float, capacity=8).tail(2).tolist() == pytest.approx([175.5, 195.5], abs=8)
    assert History().tail(5).size == 0


@pytest.mark.parametrize("resumed", [0, 1, 500, 1_999, 2_000, 90_000, 99_999])
@pytest.mark.parametrize("steps", [2_000, slow(100_000)])
def test_steps_that_are_taken_again_are_there_once_as_they_were_the_last_time(steps, resumed):
    history = History()
    for step in range(1, steps + 1):
        history.append(step, 7.0)
    history.forget_after(resumed)
    for step in range(resumed + 1, steps + 1):
        history.append(step, 1.0)
    width = 64  # so wide that a column has many buckets
    seen = history.columns(1, steps, width)
    assert not np.isnan(seen.mean).any()
    border = resumed / steps * width
    for column, mean in enumerate(seen.mean):
        if column + 1 < border - 1:
            assert mean == 7.0
        elif column > border + 1:
            assert mean == 1.0


def test_a_history_since_a_step_has_the_later_values_alone():
    history = History(8)
    for step in range(40):
        history.append(step, step)
    later = history.since(20)
    assert 15 < later.first_x <= 20
    assert later.end_x == 39
    for step in (24, 32, 39):
        assert later.at(step) == history.at(step)
    assert later.at(3) is None
    assert history.at(3) is not None
    assert History(8).since(5).at(9) is None
    assert history.since(100).tail(3).size == 0
    assert history.mean_before(39, 1) == history.at(39)
    assert history.mean_before(-1, 4) is None
