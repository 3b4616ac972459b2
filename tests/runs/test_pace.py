"""Pace of a run and its estimated end: each rule of the estimate separately."""

from dataclasses import replace

import pytest

from mptui.runs.view.state import FORWARD_SHARE, HALF_LIFE_S, Pace
from tests.made.events import step_of


def step(at, steps=1, step_time_s=None):
    return step_of(time=at, steps=steps, step_time_s=step_time_s)


def paced(*events):
    pace = Pace()
    for event in events:
        pace.stepped(event)
    return pace


def test_nothing_is_known_before_a_step_has_a_time():
    assert Pace().step_s() is None
    assert Pace().remaining(10, 5, 1) is None
    assert paced(step(100.0)).step_s() is None


def test_the_first_event_counts_with_the_time_that_it_tells_of_each_step():
    assert paced(step(100.0, steps=4, step_time_s=0.5)).step_s() == pytest.approx(0.5)


def test_from_the_second_event_on_the_clock_counts():
    pace = paced(step(100.0), step(102.0, steps=4, step_time_s=9.0))
    assert pace.step_s() == pytest.approx(0.5)


def test_the_first_event_weighs_by_its_steps():
    pace = paced(step(100.0, steps=3, step_time_s=1.0), step(101.0, steps=1))
    kept = 0.5 ** (1.0 / HALF_LIFE_S)
    assert pace.step_s() == pytest.approx((3 * kept + 1) / (3 * kept + 1))
    pace = paced(step(100.0, steps=3, step_time_s=2.0), step(101.0, steps=1))
    assert pace.step_s() == pytest.approx((6 * kept + 1) / (3 * kept + 1))


def test_what_lies_a_half_life_back_counts_half():
    pace = paced(step(0.0))
    pace.stepped(step(HALF_LIFE_S, steps=10))  # 3 s per step
    pace.stepped(step(2 * HALF_LIFE_S, steps=30))  # 1 s per step
    assert pace.step_s() == pytest.approx((HALF_LIFE_S / 2 + HALF_LIFE_S) / (10 / 2 + 30))


def test_an_interruption_is_no_time_of_steps():
    pace = paced(step(100.0), step(101.0))
    pace.interrupted()
    pace.stepped(step(1000.0))
    assert pace.step_s() == pytest.approx(1.0)
    pace.stepped(step(1002.0, steps=2))
    assert pace.step_s() == pytest.approx(1.0)


def test_what_an_event_tells_after_an_interruption_is_not_taken():
    pace = paced(step(100.0), step(101.0))
    pace.interrupted()
    pace.stepped(step(1000.0, step_time_s=50.0))
    assert pace.step_s() == pytest.approx(1.0)


@pytest.mark.parametrize("later", [101.0, 50.0])
def test_a_clock_that_stands_or_goes_back_counts_for_nothing(later):
    pace = paced(step(100.0), step(101.0), step(later))
    assert pace.step_s() == pytest.approx(1.0)


def epochs(*ends, step_s=1.0, interrupt=lambda pace: None):
    """Return the pace after epochs of ten steps, with the seconds between each and the next."""
    pace, now = Pace(), 100.0
    for end_s in ends:
        pace.began_epoch(step(now))
        for _ in range(10):
            now += step_s
            pace.stepped(step(now))
        pace.interrupted()
        interrupt(pace)
        pace.finished_epoch()
        now += end_s
    pace.began_epoch(step(now))
    return pace


@pytest.mark.parametrize(("steps", "ends"), [(10, 1), (11, 2), (20, 2), (1, 1), (0, 0)], ids=lambda n: str(n))
def test_each_epoch_has_an_end_with_its_validation_and_its_save(steps, ends):
    pace = epochs(7.0)
    assert pace.remaining(steps, 10, 4) == pytest.approx(1.0 * steps + 7.0 * ends)


def test_an_end_not_yet_measured_is_guessed_from_the_batches_of_its_validation():
    pace = paced(step(100.0), step(102.0))
    assert pace.remaining(10, 10, 6) == pytest.approx(20 + 6 * 2.0 * FORWARD_SHARE)


@pytest.mark.parametrize(("steps_per_epoch", "val_batches"), [(0, 6), (10, 0)])
def test_a_run_without_validation_has_none_to_wait_for(steps_per_epoch, val_batches):
    pace = paced(step(100.0), step(102.0))
    assert pace.remaining(10, steps_per_epoch, val_batches) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("ends", "usual"),
    [
        ((6.0, 400.0), 6.0),
        ((400.0, 6.0), 6.0),
        ((6.0, 400.0, 7.0), 7.0),
        ((400.0, 6.0, 500.0, 7.0), 7.0),
        ((40.0, 40.0, 40.0, 6.0, 6.0, 6.0, 6.0, 6.0), 6.0),  # the disk is free again
        ((400.0,), 4 * FORWARD_SHARE),  # the first is slow: as many batches take less
        ((12.0,), 12.0),
    ],
)
def test_one_slow_validation_does_not_make_all_others_slow(ends, usual):
    assert epochs(*ends).remaining(10, 10, 4) == pytest.approx(10 + usual)


def test_an_end_in_which_the_run_was_paused_is_no_usual_one():
    assert epochs(6.0, interrupt=Pace.waited).epoch_end_s(4) == pytest.approx(4 * FORWARD_SHARE)


def test_an_epoch_that_begins_anew_in_its_middle_has_not_ended():
    pace = epochs(6.0)
    pace.stepped(step(200.0))
    pace.began_epoch(step(290.0))  # after a switch of settings
    assert pace.epoch_end_s(4) == 6.0


def test_a_suspended_process_does_not_make_its_steps_slow():
    pace = paced(*(step(100.0 + at) for at in range(21)))
    pace.stepped(step(1000.0))
    assert pace.step_s() < 11
    for at in range(20):
        pace.stepped(step(1001.0 + at))
    assert pace.step_s() < 1.6


def test_steps_that_are_slow_from_now_on_are_soon_known():
    pace = paced(*(step(100.0 + at) for at in range(100)))
    for at in range(1, 11):
        pace.stepped(step(200.0 + 30 * at))
    assert pace.step_s() == pytest.approx(30.0, rel=0.1)


def test_what_steps_took_under_other_settings_is_forgotten_and_the_ends_of_epochs_are_not():
    pace = epochs(6.0)
    pace.restart()
    assert pace.step_s() is None
    pace.stepped(step(500.0, step_time_s=3.0))
    assert pace.remaining(10, 10, 4) == pytest.approx(30.0 + 6.0)


def test_the_constants_are_those_that_the_estimate_is_described_with():
    assert (HALF_LIFE_S, FORWARD_SHARE) == (30.0, 1 / 3)


def test_a_jump_of_the_wall_clock_does_not_count():
    pace = paced(
        *(replace(step(100.0 + at + (86_400 if at > 2 else 0)), clock=7.0 + at) for at in range(5)),
    )
    assert pace.step_s() == pytest.approx(1.0)
