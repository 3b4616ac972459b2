"""Detection in rows of steps: a scaler's skip, a bad batch, a divergence."""

import math

import pytest

from mptui.engine.guards.detector import FAULTS_IN_A_ROW, MANY, WITHIN, DivergenceDetector
from mptui.engine.reporting.reporter import StepRow

NAN, OVERFLOW, GOOD = "nan", "overflow", "good"


def row(step, kind, scale=1024.0):
    return StepRow(
        step=step,
        epoch=1,
        epoch_step=step,
        samples=8,
        sample=8 * (step - 1),
        loss=math.nan if kind == NAN else 1.0,
        grad_norm=1.0 if kind == GOOD else math.nan,
        refused=kind != GOOD,
        loss_scale=scale,
        lr=0.1,
    )


def watched(kinds, *, floor=1.0, max_streak=50, scale=1024.0):
    watch = DivergenceDetector(max_streak, floor)
    for step, kind in enumerate(kinds, 1):
        watch.update([row(step, kind, scale)])
    return watch


def left_out(watch):
    return [place.step for place in watch.left_out]


@pytest.mark.parametrize("loss", [NAN, OVERFLOW])
def test_a_few_skips_of_the_scaler_are_normal_and_a_bad_batch_is_told(loss):
    watch = watched([GOOD, loss, loss, GOOD])
    assert watch.alarm is None
    assert left_out(watch) == ([2, 3] if loss == NAN else [])
    assert watch.last_good == 4


def test_without_a_scale_a_bad_gradient_is_a_fault_like_a_bad_loss():
    assert left_out(watched([GOOD, OVERFLOW, GOOD], floor=None)) == [2]


@pytest.mark.parametrize(("kind", "floor"), [(NAN, 1.0), (NAN, None), (OVERFLOW, None)])
def test_faults_that_go_on_are_a_divergence_that_began_with_the_first(kind, floor):
    watch = watched([GOOD, GOOD] + [kind] * FAULTS_IN_A_ROW, floor=floor)
    assert watch.alarm is not None
    assert (watch.alarm.place.step, watch.alarm.place.epoch, watch.alarm.place.sample) == (3, 0, 16)
    assert watch.last_good == 2


def test_skips_are_one_at_the_floor_or_when_there_are_too_many():
    assert watched([OVERFLOW] * 3, scale=2.0).alarm is None
    assert "lowest loss scale" in str(watched([OVERFLOW] * 3, scale=1.0).alarm)
    assert watched([OVERFLOW] * 5, max_streak=6).alarm is None
    assert watched([OVERFLOW] * 6, max_streak=6).alarm is not None
    assert watched([OVERFLOW] * 5 + [GOOD] + [OVERFLOW] * 5, max_streak=6).alarm is None


def test_many_single_faults_are_one():
    assert watched([NAN, GOOD] * (MANY - 1)).alarm is None
    assert watched([NAN, GOOD] * MANY).alarm is not None
    assert watched(([NAN] + [GOOD] * 30) * MANY).alarm is None


def test_rows_after_an_alarm_wait_and_are_seen_when_it_was_a_false_one():
    kinds = [GOOD, NAN, NAN, NAN, GOOD, NAN, GOOD, GOOD]
    late = watched(kinds)
    assert late.last_good == 1
    late.clear_batches()
    soon = DivergenceDetector(50, 1.0)
    for step, kind in enumerate(kinds, 1):
        soon.update([row(step, kind)])
        if soon.alarm is not None:
            soon.clear_batches()
    assert left_out(late) == left_out(soon) == [2, 3, 4, 6]
    assert late.state_dict() == soon.state_dict()


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_it_makes_no_difference_how_many_rows_are_read_at_once(size):
    kinds = [GOOD, NAN, GOOD, GOOD, OVERFLOW, OVERFLOW, GOOD, NAN, NAN, NAN, GOOD, NAN, GOOD]
    rows = [row(step, kind, 2.0) for step, kind in enumerate(kinds, 1)]
    watch = DivergenceDetector(50, 1.0)
    for first in range(0, len(rows), size):
        watch.update(rows[first : first + size])
    one_by_one = watched(kinds, scale=2.0)
    assert (watch.alarm, watch.state_dict()) == (one_by_one.alarm, one_by_one.state_dict())
    watch.clear_batches()
    one_by_one.clear_batches()
    assert (left_out(watch), watch.state_dict()) == (left_out(one_by_one), one_by_one.state_dict())


def test_going_back_forgets_the_rows_that_waited():
    watch = watched([GOOD, NAN, NAN, NAN, NAN, NAN])
    watch.reset()
    watch.clear_batches()
    assert watch.alarm is None
    assert watch.left_out == []
    assert watch.refused_in_a_row == 0


def test_a_watch_goes_on_from_a_state():
    kinds = [GOOD, NAN, NAN, NAN]
    for cut in range(4):
        first = watched(kinds[:cut])
        second = DivergenceDetector(50, 1.0)
        second.load_state_dict(first.state_dict())
        for step, kind in enumerate(kinds[cut:], cut + 1):
            second.update([row(step, kind)])
        assert second.alarm == watched(kinds).alarm


@pytest.mark.parametrize(("last", "diverged"), [(WITHIN, True), (WITHIN + 1, False)])
def test_the_window_of_many_faults_is_so_many_steps_wide(last, diverged):
    """The first fault is at step 1; all others except the last follow soon."""
    faults = {*range(1, 2 * MANY - 2, 2), last}
    assert len(faults) == MANY
    kinds = [NAN if step in faults else GOOD for step in range(1, last + 1)]
    assert (watched(kinds).alarm is not None) is diverged
