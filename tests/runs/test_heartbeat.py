"""Whether a run gives signs of life, by files and by events, whatever clocks are set to."""

import os
import time

import pytest

from mptui.events import DeviceSample, Paused, PhaseChanged, RunFinished
from mptui.processes.waiting import AwakeClock
from mptui.runs.session.watchdog import Absence
from mptui.runs.store.directory import claim
from mptui.runs.store.heartbeat import SILENT_S, Heartbeat, age_of, silence_of
from mptui.runs.store.journal import NAME, Journal
from mptui.runs.store.lock import NAME as LOCK


class Looks:
    """A heartbeat that is looked at by a clock of the test's."""

    def __init__(self):
        self.now = 1000.0
        self.heartbeat = Heartbeat(AwakeClock(5.0, lambda: self.now))

    def after(self, seconds, sign, age_s=0.0):
        self.now += seconds
        return self.heartbeat.seconds(sign, age_s)


def test_a_sign_is_as_old_as_it_was_when_it_was_first_seen_and_a_new_one_is_new():
    looks = Looks()
    assert looks.after(0, "old", age_s=600.0) == 600.0
    assert looks.after(1, "older news that is read late", age_s=300.0) == 300.0
    assert looks.after(4, "older news that is read late", age_s=304.0) == 304.0
    assert looks.after(1, "new", age_s=3600.0) == 0.0  # whatever a clock that was set says of its age
    assert looks.after(4, "new", age_s=3604.0) == 4.0


def test_a_reader_that_was_away_itself_does_not_blame_the_run():
    looks = Looks()
    looks.after(0, "sign")
    assert looks.after(3600, "sign") == 5.0


@pytest.mark.parametrize(("set_by", "seconds"), [(0.0, 30.0), (3600.0, 0.0), (-3600.0, 0.0)])
def test_an_age_is_told_only_where_both_clocks_tell_it(set_by, seconds):
    found = age_of(time.time() - 30 + set_by, time.monotonic() - 30)
    assert found == pytest.approx(seconds, abs=1.0)


def sample(clock):
    return DeviceSample(time=time.time(), clock=clock, name="cpu")


@pytest.mark.parametrize(
    ("last", "is_silent"),
    [
        ([sample(1.0)], True),
        ([sample(1.0), Paused()], True),
        ([PhaseChanged(phase="training"), sample(1.0), PhaseChanged(phase="validating")], True),
        ([sample(1.0), PhaseChanged(phase="restarting")], False),  # its processes start again
        ([sample(1.0), RunFinished(status="stopped", exit_code=0), PhaseChanged(phase="starting")], False),
        ([PhaseChanged(phase="starting")], False),
    ],
)
def test_a_run_on_disk_is_silent_only_after_it_gave_signs(tmp_path, last, is_silent):
    journal = Journal(tmp_path)
    for event in last:
        journal.write(event)
    claim(tmp_path)
    assert silence_of(tmp_path, Heartbeat()) is None
    for name, seconds in ((NAME, 300.0), (LOCK, 2 * SILENT_S)):
        os.utime(tmp_path / name, (time.time() - seconds,) * 2)
    found = silence_of(tmp_path, Heartbeat())
    assert found == (pytest.approx(2 * SILENT_S, abs=2.0) if is_silent else None)


def test_only_a_wait_that_is_far_too_long_is_an_absence_and_each_is_told_once(monkeypatch):
    now = 50.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: now)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    absence = Absence()
    now += 500
    assert absence.take() == 0.0  # nothing waits: a disk that hangs is no absence
    absence.start()
    now += 3
    assert absence.take() == 0.0
    now += 98
    assert absence.take() == 100.0
    assert absence.take() == 0.0
    absence.stop()
    now += 500
    assert absence.take() == 0.0
