"""Ctrl+Z in a run of two processes: all of them stop, and go on together."""

import os
import signal

import psutil
import pytest

from mptui.engine.checkpoint.files import read_newest
from mptui.events import Step, Warned
from mptui.runs.store.directory import RANKS, read_summary
from mptui.runs.store.lock import owner_of
from tests.e2e.test_terminal import ENDLESS, count, is_stopped
from tests.forks import FORKING, rank_pids
from tests.made.waiting import wait_until

pytestmark = pytest.mark.program

TWO = ("run", "--nproc-per-node", "2", "--device", "cpu", "--name", "two")
FAST = {"MPTUI_DATA_WORKERS": "0", "MPTUI_TRAINING_BATCH_SIZE": "8"}


@pytest.fixture
def program(terminal):
    """A run of two ranks that has taken some steps."""
    program = terminal(environ=ENDLESS | FAST, arguments=TWO, call=FORKING)
    program.until(lambda: count(program, Step) > 3, "some steps")
    return program


def processes(program):
    """The process on the terminal, its launcher, and the ranks."""
    folder = program.folder / "runs" / "two" / RANKS
    ranks = rank_pids(folder)
    assert set(ranks) == {0, 1}
    return [psutil.Process(pid) for pid in (program.pid, owner_of(folder), *ranks.values())]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_z_suspends_all_ranks_and_none_is_lost_when_they_go_on(program, times):
    family = processes(program)
    for _ in range(times):
        before = len(program.output)
        program.press("ctrl+z")
        program.until(lambda: all(map(is_stopped, family)), "the stop of all")
        program.until(lambda b=before: b"suspended; to continue: fg" in program.output[b:], "the words")
        assert program.modes()["25"] == b"h"
        steps = count(program, Step)
        os.kill(program.pid, signal.SIGCONT)
        program.until(lambda: not any(map(is_stopped, family)), "all go on")
        program.until(lambda s=steps: count(program, Step) >= s + 3, "more steps")
    assert processes(program) == family
    program.press("ctrl+c")
    assert program.exit_code() == 130
    assert not [event for event in program.journal() if isinstance(event, Warned)]
    assert not any(process.is_running() for process in family[1:])
    run = program.folder / "runs" / "two"
    assert read_summary(run).get("lost") is None
    assert read_newest(run / "checkpoints")[0].step == count(program, Step)


@pytest.mark.slow
def test_a_suspended_group_whose_terminal_is_closed_goes_on(program):
    _, launcher, *ranks = family = processes(program)
    program.press("ctrl+z")
    program.until(lambda: all(map(is_stopped, family)), "the stop of all")
    steps = count(program, Step)
    for number in (signal.SIGHUP, signal.SIGCONT):  # as a shell and the kernel do
        os.kill(program.pid, number)
    wait_until(program.ended)
    wait_until(lambda: count(program, Step) >= steps + 3)
    launcher.send_signal(signal.SIGTERM)
    wait_until(lambda: not any(process.is_running() for process in (launcher, *ranks)))
    assert not [event for event in program.journal() if isinstance(event, Warned)]


@pytest.mark.slow
def test_a_suspended_screen_says_that_a_run_of_other_processes_goes_on(program, terminal):
    watcher = terminal(environ=ENDLESS, arguments=("attach", "two"))
    watcher.shows("● training")
    watcher.shows("2 ranks")
    watcher.press("ctrl+z")
    watcher.shows("the run goes on in its own process; to continue: fg")
    steps = count(program, Step)
    program.until(lambda: count(program, Step) >= steps + 3, "more steps")
    watcher.go_on()
    program.press("ctrl+c")
    assert program.exit_code() == 130
