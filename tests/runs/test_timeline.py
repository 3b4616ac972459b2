import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.events import Event, Paused, PhaseChanged, Resumed, RunFinished, Suspended
from mptui.runs.view.history import HAPPENINGS, SLICES, STATES, Timeline
from mptui.runs.view.run_view import RunView
from tests.tui.events import START, demo_source, device_sample, run_started, step_event


def folded(*events):
    view = RunView()
    for event in events:
        view.handle(event)
    return view


def view_of_demo():
    return demo_source().view


def seconds_of(timeline, width=SLICES):
    return dict(zip(STATES, timeline.columns(width).seconds.sum(axis=1).tolist(), strict=True))


def test_each_second_of_a_run_is_in_the_state_it_was_spent_in(chance):
    view = folded(
        run_started(),
        PhaseChanged(time=START + 10, phase="compiling"),
        step_event(1, START + 40, chance, data_wait_fraction=0.25),
        step_event(2, START + 140, chance, data_wait_fraction=0.25),
        PhaseChanged(time=START + 140, phase="validating"),
        Paused(time=START + 150),
        Resumed(time=START + 170),
        Suspended(time=START + 290, seconds=115),
    )
    spent = seconds_of(view.timeline)
    assert spent == pytest.approx(
        {
            "preparing": 10,
            "compiling": 30,
            "training": 75,
            "waiting": 25,
            "validating": 15,
            "saving": 0,
            "paused": 20,
            "suspended": 115,
        }
    )
    assert view.log[-1].text == "suspended for 1 min 55 s: the process, or the machine, did not run"


def test_the_sleep_of_a_machine_is_lost_time_though_its_clock_stood_still():
    view = folded(
        run_started(clock=10.0),
        PhaseChanged(time=START, clock=10.0, phase="training"),
        Suspended(time=START + 7200, clock=12.0, seconds=7190),
        PhaseChanged(time=START + 7210, clock=22.0, phase="saving"),
    )
    spent = seconds_of(view.timeline)
    assert (spent["training"], spent["suspended"]) == (pytest.approx(10), pytest.approx(7190))
    assert "suspended" in view.timeline.columns(40).main_states()


def test_a_run_of_months_takes_no_more_than_one_of_minutes_and_no_second_is_lost():
    timeline = Timeline()
    timeline.skip_to(START)
    for hour in range(24 * 90):
        timeline.advance(START + 3600 * (hour + 1), "validating" if hour % 10 == 9 else "training")
        timeline.reached(hour, "bf16", "fast")
        if hour == 1000:
            timeline.happen("alert")
    assert timeline.used <= SLICES
    assert sum(seconds_of(timeline, 100).values()) == pytest.approx(90 * 24 * 3600)
    columns = timeline.columns(100)
    assert columns.happened[HAPPENINGS.index("alert")].sum() == 1
    assert columns.seconds.shape[1] == 100
    assert set(columns.precision) == {"bf16"}


def test_time_between_a_kill_and_its_resume_takes_no_columns(chance):
    view = folded(run_started(), step_event(10, START + 30, chance))
    week = START + 7 * 86_400
    for event in (
        PhaseChanged(time=week, phase="starting"),
        run_started(time=week + 5, step=8),
        step_event(20, week + 25, chance),
    ):
        view.handle(event)
    assert sum(seconds_of(view.timeline).values()) == pytest.approx(30 + 5 + 20, abs=5.1)
    assert view.timeline.columns(200).happened[HAPPENINGS.index("restart")].sum() == 1
    ended = week + 30
    view.handle(RunFinished(time=ended, step=20, status="stopped", exit_code=0))
    used = view.timeline.used
    view.handle(device_sample(ended + 900, 20, chance))
    assert view.timeline.used == used


def test_a_moment_keeps_its_place_while_the_run_goes_on(chance):
    view = view_of_demo()
    timeline = view.timeline
    moment = timeline.moment_in(70, 100)
    assert timeline.column_of(moment, 100) == 70
    share = moment.elapsed / (timeline.used * timeline.saved().slice_s)
    for hour in range(1, 50):
        view.handle(step_event(14_297 + hour, view.time + 1800, chance))
    assert timeline.column_of(moment, 100) < 10
    assert moment.elapsed == pytest.approx(share * 1600, rel=0.2)
    assert timeline.moment_in(500, 100).step == view.step


def test_the_moment_of_a_step_is_when_it_was_reached_last(chance):
    view = folded(run_started(), *(step_event(n, START + n, chance) for n in range(1, 60)))
    assert view.timeline.moment_at(30).time == pytest.approx(START + 30, abs=1.01)
    view.handle(run_started(time=START + 100, step=20))
    for n in range(20, 60):
        view.handle(step_event(n, START + 100 + n, chance))
    again = view.timeline.moment_at(30)
    assert again.time == pytest.approx(START + 130, abs=1.01)
    assert again.step == 30
    assert view.timeline.moment_at(1000) is None
    assert Timeline().moment_at(3) is None
    assert Timeline().moment_in(3, 80) is None


def test_device_precision_and_scale_have_their_columns(chance):
    view = view_of_demo()
    columns = view.timeline.columns(60)
    assert set(columns.precision) == {"", "fp16"} or set(columns.precision) == {"fp16"}
    assert 0.9 < columns.busy[-1] < 1.0
    assert columns.scale[-1] == 65536
    assert columns.skipped.sum() == 2


def test_odd_times_and_numbers_leave_it_whole(chance):
    timeline = Timeline()
    for moment in (START, START - 500, math.nan, START + 5, START + 4):
        timeline.advance(moment, "training", math.nan)
        timeline.scaled(math.inf)
        timeline.sampled(math.nan)
    for number in range(100):
        timeline.reached(number, f"precision {number}", "p")
    assert all(math.isfinite(each) for each in seconds_of(timeline).values())
    assert Timeline.loaded(timeline.saved()).saved() == timeline.saved()


@pytest.mark.parametrize(
    "change",
    [
        {"slices": "AAAA"},
        {"slices": "%"},
        {"elapsed": math.inf},
        {"elapsed": -1.0},
        {"slice_s": 0.0},
        {"names": ["x"] * 1000},
        {"names": []},
    ],
)
def test_a_damaged_timeline_is_refused(change):
    saved = view_of_demo().timeline.saved()
    assert Timeline.loaded(saved).saved() == saved
    with pytest.raises(ValueError, match=r"timeline|slices|reshape|base64|buffer|data"):
        Timeline.loaded(dataclasses.replace(saved, **change))


def jumping(chance, seconds):
    """Events of a run of so many seconds, one each: the wall's clock is set, and samples tell of earlier."""
    wall = START
    events: list[Event] = [run_started(time=START, clock=5.0)]
    phases = ("training", "validating", "saving")
    for second in range(1, seconds + 1):
        wall += 1 + chance.choice([0, 0, 0, 86_400, -86_400, 2.5, -0.7])
        at = {"time": wall, "clock": 5.0 + second}
        sample = device_sample(wall - chance.uniform(0, 9), 1, chance)
        late = dataclasses.replace(sample, clock=5.0 + second)
        events += [late, PhaseChanged(phase=chance.choice(phases), **at)]
    return events


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_parts_of_a_run_are_its_seconds_whatever_the_clock_of_the_wall_says(chance, seconds):
    view = folded(*jumping(chance, seconds))
    assert sum(seconds_of(view.timeline).values()) == pytest.approx(seconds)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_late_events_of_an_older_journal_add_no_time(chance, seconds):
    """It has no other clock: an event of an earlier time is no beginning of time that was counted."""
    events: list[Event] = [run_started(time=START)]
    for second in range(1, seconds + 1):
        late = device_sample(START + second - chance.uniform(0, 9), 1, chance)
        events += [late, PhaseChanged(time=START + second, phase="training")]
    view = folded(*events)
    assert sum(seconds_of(view.timeline).values()) == pytest.approx(seconds)


def test_a_clock_that_starts_over_with_a_resume_loses_no_time(chance):
    """After a restart of the machine, the monotonic clock begins anew."""
    view = folded(
        run_started(clock=9000.0),
        PhaseChanged(time=START + 10, clock=9010.0, phase="training"),
        PhaseChanged(time=START + 500, clock=3.0, phase="starting"),
        run_started(time=START + 502, clock=5.0),
        PhaseChanged(time=START + 505, clock=8.0, phase="training"),
        step_event(3, START + 90_000, chance, clock=12.0),
    )
    assert sum(seconds_of(view.timeline).values()) == pytest.approx(10 + 3 + 4)
