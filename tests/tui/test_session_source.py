"""A real run in this process, controlled through the source of its screen."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from mptui.events import CommandAnswered, Event, Paused, PhaseChanged, Progress, RunFinished, RunStarted, Step
from mptui.runs.planning.plan import Request
from mptui.runs.remote.feed import OwnFeed
from mptui.runs.session import session
from mptui.runs.store.journal import read_journal
from mptui.runs.view.run_view import RunView
from mptui.tui.sources import SessionSource
from mptui.tui.widgets.header import headline

DEADLINE_S = 120
LOOK_S = 0.02
TINY = (
    "model.name=unet",
    "model.width=4",
    "model.depth=1",
    "data.samples=16",
    "data.image_size=16",
    "hardware.device=cpu",
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def source_of(folder, *sets, profile="debug", **kwargs):
    return SessionSource(Request(profile, {}, (*TINY, *sets), {}), folder, **kwargs)


def events_until(source, kind):
    """Return all events up to one of this kind."""
    events: list[Event] = []
    deadline = time.monotonic() + DEADLINE_S
    while not any(isinstance(event, kind) for event in events):
        assert time.monotonic() < deadline, f"no {kind.__name__}; last: {events[-1:]}"
        time.sleep(LOOK_S)
        events += source.poll()
    return events


def test_a_run_is_told_from_planning_to_its_end(folder):
    paths: list[Path] = []
    source = source_of(folder, "training.max_steps=2", on_directory=paths.append).start()
    events = events_until(source, RunFinished)
    source.wait()
    assert isinstance(events[0], PhaseChanged)
    assert events[0].phase == "starting"
    assert sum(isinstance(event, RunStarted) for event in events) == 1
    assert [event.step for event in events if isinstance(event, Step)] == [1, 2]
    assert (events[-1].status, events[-1].exit_code) == ("completed", 0)
    assert source.finished
    assert source.exit_code == 0
    assert source.poll() == []
    assert [str(path) for path in paths] == [events[-1].directory]


def test_the_digits_are_those_of_the_picker(folder):
    assert source_of(folder).profiles[:4] == ["fast", "stable", "memory-limited", "debug"]
    assert len(source_of(folder).profiles) == 9


def test_a_command_is_answered_and_a_stop_saves(folder):
    source = source_of(folder, "training.epochs=1000").start()
    events_until(source, Step)
    source.send("checkpoint")
    answers = [event for event in events_until(source, CommandAnswered) if isinstance(event, CommandAnswered)]
    assert answers[0].command == "checkpoint"
    source.send("stop")
    finished = events_until(source, RunFinished)[-1]
    source.wait()
    assert (finished.status, source.exit_code) == ("stopped", 0)
    assert list((folder / finished.directory.rpartition("/")[2] / "checkpoints").iterdir())


def test_the_last_words_before_the_first_step_are_not_of_the_cache(folder):
    source = source_of(folder, "training.max_steps=1", "data.cache=device").start()
    view = source.view
    events = events_until(source, RunFinished)
    source.wait()
    trains = next(n for n, event in enumerate(events) if getattr(event, "phase", "") == "training")
    for event in events[:trains]:
        view.handle(event)
    assert any(isinstance(event, Progress) for event in events[:trains])
    assert "● first step" in str(headline(view, view.time, 200))


@pytest.mark.parametrize("signal", [2, 15])
def test_a_signal_before_the_run_began_is_heard_when_it_does(folder, signal):
    source = source_of(folder, "training.epochs=1000")
    source.stop(signal)
    source.start()
    assert events_until(source, RunFinished)[-1].status == "stopped"
    source.wait()
    assert source.exit_code == 128 + signal


def test_a_command_before_the_run_began_is_kept(folder):
    source = source_of(folder, "training.epochs=1000")
    source.send("pause")
    source.start()
    assert all(event.step <= 1 for event in events_until(source, Paused))
    source.stop(15)
    assert not any(isinstance(event, Step) for event in events_until(source, RunFinished))


@pytest.mark.parametrize(
    ("sets", "code", "said"),
    [
        ((*TINY, "training.lr=-1"), 2, "must be greater than 0"),
        (("model.name=resnet18", "data.name=cifar11"), 2, "no set called"),
        (("model.name=resnet18", "data.path=/nowhere"), 3, "/nowhere"),
        (
            (
                *TINY,
                "model.weights=/nowhere/weights.safetensors",
            ),
            2,
            "/nowhere/weights",
        ),
        (
            (*TINY, 'precision.fp32_layers=["nosuch"]'),
            2,
            "nosuch",
        ),  # while it prepares, in a folder of its own
    ],
)
def test_what_keeps_a_run_from_beginning_is_told_as_its_end(folder, sets, code, said):
    source = SessionSource(Request("debug", {}, sets, {}), folder).start()
    finished = events_until(source, RunFinished)[-1]
    source.wait()
    assert finished.exit_code == source.exit_code == code
    assert said in finished.message
    assert finished.hint
    assert not source.poll()
    assert source.run is None
    assert not list(folder.glob("*"))


def test_a_disk_that_does_not_answer_keeps_no_screen_waiting(folder):
    source = source_of(folder, "training.epochs=1000").start()
    events_until(source, Step)
    session = source._session
    assert session is not None
    with session._lock:  # a thread that writes an event holds it during the write
        for command in ("checkpoint", "stop"):
            asked = threading.Thread(target=source.send, args=(command,), daemon=True)
            asked.start()
            asked.join(DEADLINE_S / 4)
            assert not asked.is_alive()
        assert session.mailbox.stop_requested
    assert events_until(source, RunFinished)[-1].status == "stopped"
    source.wait()


def test_a_screen_that_looked_away_for_long_knows_the_run_as_its_journal_does(folder, monkeypatch):
    monkeypatch.setattr(session, "OwnFeed", partial(OwnFeed, capacity=20))
    source = source_of(folder, "training.max_steps=12", "logging.step_interval_s=0").start()
    source.wait()
    shown, written = RunView(), RunView()
    while not source.finished:
        for event in source.poll():
            shown.handle(event)
    for event in read_journal(source.run):
        written.handle(event)
    assert shown.started is not None
    assert [shown.step, shown.phase] == [written.step, "finished"]
    assert shown.epochs == written.epochs
