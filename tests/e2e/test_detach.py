"""A run that outlives its terminal: detached by a key or a closed terminal, watched and stopped elsewhere."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from mptui.events import Paused, Resumed, RunFinished, Step, Suspended
from mptui.runs.listing.rows import summaries
from mptui.runs.store.lock import owner_of
from tests.e2e.terminal import busy_share, threads_of
from tests.e2e.test_terminal import ENDLESS, count, start_training
from tests.forks import FORKING
from tests.made.waiting import wait_until
from tests.program import run_to_end

pytestmark = pytest.mark.program


def run_of(program):
    """The only run."""
    (run,) = (program.folder / "runs").glob("*")
    return run


def train_detached(folder):
    """Start an endless run without a screen; return its process."""
    ended = run_to_end("run", "--profile", "debug", "--detach", "--json", folder=folder, environ=ENDLESS)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["pid"]


def goes_on(program, steps=5):
    """Wait for more steps."""
    before = count(program, Step)
    wait_until(lambda: count(program, Step) >= before + steps)


def standard_streams(pid):
    """What a process has as stdin, stdout and stderr."""
    return [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (0, 1, 2)]


def is_gone(pid):
    """Whether a process has ended, even if it is still a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_key_leaves_the_run_to_itself_and_another_terminal_stops_it(training, terminal):
    program = training()
    owner = program.child.pid
    program.press("d")
    assert program.exit_code() == 0
    program.shows(f"mptui attach runs/{run_of(program).name}")
    assert program.is_restored()
    goes_on(program)
    assert owner_of(run_of(program)) == os.getsid(owner) == owner

    watcher = terminal(environ=ENDLESS, arguments=("attach",))
    watcher.shows("● training")
    watcher.press("space")
    watcher.until(lambda: count(program, Paused), "the pause")
    watcher.shows("■ paused")
    watcher.press("space")
    watcher.until(lambda: count(program, Resumed), "going on")
    watcher.press("xx")
    watcher.shows("■ stopped")
    watcher.press("q")
    assert watcher.exit_code() == 0
    assert watcher.is_restored()
    wait_until(lambda: is_gone(owner))
    assert json.loads((run_of(program) / "summary.json").read_text())["exit_code"] == 0
    assert (run_of(program) / "checkpoints" / "last").exists()
    assert not (run_of(program) / "control.sock").exists()


def test_a_closed_terminal_leaves_a_run_that_is_no_busier_for_it(terminal):
    program = terminal(environ=ENDLESS)
    program.shows("q leave")
    screen = threads_of(program.child.pid)
    start_training(program)
    owner = program.child.pid
    (log,) = (program.folder / "runs").glob("*/console.log")
    program.close()
    wait_until(lambda: standard_streams(owner) == [os.devnull, str(log), str(log)])
    wait_until(program.ended)
    goes_on(program)
    wait_until(lambda: busy_share(owner, screen) < 0.01)
    assert busy_share(owner) > 0.05  # that of the thread that trains, as that of one that spins
    goes_on(program)
    os.kill(owner, signal.SIGTERM)
    wait_until(lambda: count(program, RunFinished))
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.exit_code) == ("stopped", 143)
    assert list((run_of(program) / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_suspended_run_gives_no_sign_in_the_header_and_the_list_and_then_says_what_was_lost(
    terminal, tmp_path
):
    owner = train_detached(tmp_path)
    watcher = terminal(environ=ENDLESS, arguments=("attach",), size=(140, 45))
    watcher.shows("● training")
    os.kill(owner, signal.SIGSTOP)
    watcher.shows("▲ training, no sign for 12 s")
    (listed,) = summaries(tmp_path / "runs")
    assert listed["silent_s"] >= 12
    late = terminal(environ=ENDLESS, arguments=("attach",), size=(80, 24))
    late.shows(", no sign for")  # at once, and not only after further seconds
    os.kill(owner, signal.SIGCONT)
    watcher.until(lambda: "no sign" not in watcher.text and count(watcher, Suspended), "a sign")
    watcher.shows("suspended for")
    assert "silent_s" not in summaries(tmp_path / "runs")[0]
    watcher.press("xx")
    watcher.shows("■ stopped")


@pytest.mark.slow
def test_any_number_watches_one_only_watches_and_all_get_the_exit_code(terminal, tmp_path):
    owner = train_detached(tmp_path)
    watcher = terminal(environ=ENDLESS, arguments=("attach",))
    reader = terminal(environ=ENDLESS, arguments=("attach", "--readonly"))
    for each in (watcher, reader):
        each.shows("● training")
    reader.press("xx")
    reader.shows("this screen is read-only")
    watcher.press("q")  # closes the screen; the run continues
    assert watcher.exit_code() == 0
    goes_on(reader)
    os.kill(owner, signal.SIGTERM)
    reader.shows("■ stopped")
    reader.press("q")
    assert reader.exit_code() == 143
    late = terminal(environ=ENDLESS, arguments=("attach",))
    late.shows("■ stopped")
    late.press("q")
    assert late.exit_code() == 0
    assert json.loads((run_of(late) / "summary.json").read_text())["exit_code"] == 143


@pytest.mark.slow
def test_an_isolated_run_is_another_process_and_its_death_is_told(terminal):
    program = terminal(environ=ENDLESS, arguments=("--isolate",), call=FORKING)
    start_training(program)
    owner = owner_of(run_of(program))
    assert owner is not None
    assert owner not in {program.pid, *(each.pid for each in psutil.Process(program.pid).children())}
    program.press("space")
    program.shows("■ paused")
    os.kill(owner, signal.SIGKILL)
    program.shows("✗ crashed")
    program.shows("mptui resume")  # the log is drawn after the first line
    program.press("q")
    assert program.exit_code() == 1
