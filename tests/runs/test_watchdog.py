"""A hanging run warns once, and dumps the stacks of its threads."""

import stat
import threading

import pytest

from mptui.events import DeviceSample, PhaseChanged, Progress, Warned
from mptui.runs.session import watchdog
from mptui.runs.session.watchdog import NAME, Watchdog
from tests.made.events import step_of


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def strftime(self, form):
        return form


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


@pytest.fixture
def warned():
    return []


@pytest.fixture
def dog(tmp_path, clock, warned):
    dog = Watchdog(tmp_path, lambda: 60.0, lambda code, message: warned.append((code, message)))
    dog.handle(PhaseChanged(phase="training"))
    dog.check(0)
    return dog


def step(number, seconds=0.1):
    return step_of(number, step_time_s=seconds)


def passes(dog, clock, seconds, position=0):
    for _ in range(seconds):
        clock.now += 1
        dog.check(position)


def wait_in_a_function_with_a_name_of_its_own(event):
    event.wait()


def test_the_time_in_which_the_process_was_suspended_is_no_hang(dog, clock, warned):
    passes(dog, clock, 30)
    clock.now += 3600
    dog.check(0)
    passes(dog, clock, 15)
    assert warned == []
    passes(dog, clock, 30)
    assert [code for code, _ in warned] == ["hang"]


def test_a_hang_is_told_once_with_the_stacks_of_all_threads(tmp_path, dog, clock, warned):
    hanging = threading.Event()
    thread = threading.Thread(target=wait_in_a_function_with_a_name_of_its_own, args=[hanging])
    thread.start()
    try:
        dog.handle(step(7))
        passes(dog, clock, 59)
        assert warned == []
        passes(dog, clock, 300)
    finally:
        hanging.set()
        thread.join()
    ((code, message),) = warned
    assert code == "hang"
    assert "training" in message
    assert "after step 7" in message
    assert NAME in message
    stacks = (tmp_path / NAME).read_text()
    assert "wait_in_a_function_with_a_name_of_its_own" in stacks
    assert "test_a_hang_is_told_once" in stacks
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_the_next_hang_is_told_again(dog, clock, warned):
    passes(dog, clock, 100)
    dog.handle(step(1))
    passes(dog, clock, 100)
    assert len(warned) == 2


def test_steps_that_are_not_told_count_too(dog, clock, warned):
    """With a long log interval there are no events, but the trainer's position advances."""
    for position in range(20):
        passes(dog, clock, 50, position)
    assert warned == []


def test_what_is_no_progress_does_not_count(dog, clock, warned):
    for _ in range(100):
        passes(dog, clock, 1)
        dog.handle(DeviceSample(name="gpu"))
        dog.handle(Warned(code="a", message="b"))
    assert len(warned) == 1


@pytest.mark.parametrize("phase", ["paused", "finished"])
def test_a_pause_is_no_hang(dog, clock, warned, phase):
    dog.handle(PhaseChanged(phase=phase))
    passes(dog, clock, 10_000)
    assert warned == []


def test_slow_steps_have_their_time(dog, clock, warned):
    dog.handle(step(1, seconds=30.0))
    passes(dog, clock, 599)
    assert warned == []
    passes(dog, clock, 2)
    assert len(warned) == 1


def test_compiling_has_longer(dog, clock, warned):
    dog.handle(PhaseChanged(phase="compiling"))
    passes(dog, clock, 400)
    assert warned == []


def test_a_slow_scan_that_moves_is_no_hang(dog, clock, warned):
    dog.handle(PhaseChanged(phase="scanning"))
    for done in range(10):
        passes(dog, clock, 50)
        dog.handle(Progress(phase="scanning", done=done, total=10))
    assert warned == []


def test_what_is_being_read_is_named_and_made_safe(dog, clock, warned):
    dog.reading = lambda: ["slow\x1b[2J.jpg", *[f"{i}.jpg" for i in range(20)]]
    passes(dog, clock, 100)
    assert "slow\\x1b[2J.jpg" in warned[0][1]
    assert "…" in warned[0][1]


def test_ranks_that_have_not_arrived_are_named(dog, clock, warned):
    dog.late = lambda: ["rank 3 (process 7 on b) has not arrived"]
    passes(dog, clock, 100)
    assert "after step 0); rank 3 (process 7 on b) has not arrived; the stacks" in warned[0][1]


def test_it_can_be_turned_off(tmp_path, clock, warned):
    dog = Watchdog(tmp_path, lambda: 0.0, lambda code, message: warned.append(code))
    passes(dog, clock, 100_000)
    assert warned == []


def test_a_disk_that_can_not_be_written_is_no_reason_to_be_silent(tmp_path, clock, warned):
    (tmp_path / NAME).mkdir()
    dog = Watchdog(tmp_path, lambda: 60.0, lambda code, message: warned.append(message))
    passes(dog, clock, 1000)
    assert "can't be written" in warned[0]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
