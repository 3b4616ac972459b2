"""A run in a separate process: its command line, and the message if it failed to start."""

import signal
import subprocess
import sys
import time

import pytest

from mptui.events import CommandAnswered, Event, PhaseChanged, RunFinished
from mptui.processes.rank_place import Group
from mptui.runs.planning.plan import Request
from mptui.tui.sources import IsolatedSource, command

DEADLINE_S = 120


def test_what_was_picked_is_asked_for_in_flags(tmp_path):
    flags = {
        "hardware.device": ("picked", "cpu"),
        "data.path": ("picked", "/data/a b"),
        "data.name": ("picked", None),
        "training.epochs": ("picked", 3),
        "training.lr": ("edited", 0.5),
        "speed.channels_last": ("edited", True),
        "model.name": ("edited", 'quo"ted'),
    }
    words = command(Request("fast", flags, ("training.seed=4",), {}), tmp_path)
    assert words[1:] == [
        *("-P", "-m", "mptui", "run", "--detach", "--json", "--runs-dir", str(tmp_path), "--profile", "fast"),
        *("--device", "cpu", "--data", "/data/a b", "--set", "training.epochs=3"),
        *("--set", "training.lr=0.5", "--set", "speed.channels_last=true"),
        *("--set", 'model.name="quo\\"ted"', "--set", "training.seed=4"),
    ]


def test_several_processes_are_asked_for_in_the_flags_of_their_launcher(tmp_path):
    request = Request("fast", {"hardware.device": ("picked", "cuda")}, (), {})
    words = command(request, tmp_path, ("--device", "0,2"))
    assert words[4:] == [
        *("run", "--detach", "--json", "--device", "0,2", "--runs-dir", str(tmp_path), "--profile", "fast")
    ]
    flags = {"hardware.device": ("--device", "cpu"), "training.epochs": ("--epochs", 3)}
    request = Request(str(tmp_path / "run.toml"), flags, ("training.lr=0.1",), {}, trust_code=True)
    words = command(request, tmp_path, Group(processes=2, max_restarts=0).flags, tmp_path / "one")
    assert words[4:] == [
        *("resume", "--detach", "--json", "--nproc-per-node", "2", "--max-restarts", "0", "--trust-code"),
        *(str(tmp_path / "one"), "--device", "cpu", "--set", "training.epochs=3", "--set", "training.lr=0.1"),
    ]


@pytest.mark.program
def test_what_keeps_it_from_beginning_is_told_as_its_end(tmp_path):
    source = IsolatedSource(Request("debug", {"training.lr": ("edited", -1)}, (), {}), tmp_path).start()
    source.send("pause")
    source.wait()
    events: list[Event] = []
    deadline = time.monotonic() + DEADLINE_S
    while not any(isinstance(event, RunFinished) for event in events):
        assert time.monotonic() < deadline
        events += source.poll()
    assert isinstance(events[0], PhaseChanged)
    asked = events[1]
    assert isinstance(asked, CommandAnswered)
    assert (asked.command, asked.state) == ("pause", "asked")
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.exit_code == source.exit_code == 2
    assert "greater than 0" in finished.message
    assert finished.hint
    assert source.finished
    assert list(tmp_path.iterdir()) == []


@pytest.mark.program
def test_a_stop_before_it_began_leaves_no_run(tmp_path):
    source = IsolatedSource(Request("debug", {"training.epochs": ("picked", 9999)}, (), {}), tmp_path)
    source.stop(signal.SIGTERM)
    source.start().wait()
    assert source.exit_code == 143
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_can_not_be_started_is_told_as_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("mptui.tui.sources.command", lambda *_: [str(tmp_path / "no-program")])
    source = IsolatedSource(Request("debug", {}, (), {}), tmp_path).start()
    source.wait()
    finished = source.poll()[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.status, finished.exit_code, source.exit_code) == ("failed", 1, 1)
    assert "no-program" in finished.message
    assert source.finished


def test_a_stop_that_finds_the_process_just_ended_is_no_error(tmp_path, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    source = IsolatedSource(Request("debug", {}, (), {}), tmp_path)
    source.run = tmp_path
    monkeypatch.setattr("mptui.tui.sources.owner_of", lambda _: ended.pid)
    source.stop(signal.SIGTERM)
    source.save()
