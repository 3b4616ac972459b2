"""A process that stood still while another one took its run over, wakes: it ends, and leaves all as it is."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from mptui.events import RunStarted
from mptui.runs.directory import read_summary
from tests.chaos.runs import LIMIT_S, LONG, LOOK_S, finished, started, stepped, wait_for


def frozen(child):
    """Stop a process as a lid that is closed does, and wait until it stands still."""
    child.send(signal.SIGSTOP)
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(LOOK_S)


def seems_gone(run):
    """Let the lock be what a process of another machine sees of one that has long not touched it."""
    lock = json.loads((run / "lock.json").read_text())
    (run / "lock.json").write_text(json.dumps({**lock, "boot": "another", "host": "elsewhere"}))
    os.utime(run / "lock.json", (1, 1))


def everything_in(run):
    """Each file with its bytes and its time; each link with what it leads to."""
    found = {}
    for path in run.rglob("*"):
        if path.is_symlink():
            found[path] = path.readlink()
        elif path.is_file():
            found[path] = path.stat().st_mtime_ns, path.read_bytes()
    return found


def resumed_and_ended(server, folder):
    finished(server, LONG.but(training__max_steps=1), folder, "run")
    assert read_summary(folder / "run")["status"] == "completed"
    assert not (folder / "run" / "lock.json").exists()


def resumed_and_killed(server, folder):
    other = started(server, LONG, folder, "run", output=folder / "other.out")
    wait_for(other, folder / "run", lambda events: sum(isinstance(e, RunStarted) for e in events) == 2)
    other.send(signal.SIGKILL)
    assert other.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize("by_another", [resumed_and_ended, resumed_and_killed])
def test_a_process_that_wakes_leaves_the_run_to_who_took_it(fork_server, tmp_path, by_another):
    run = tmp_path / "run"
    sleeper = started(fork_server, LONG, tmp_path, "run", output=tmp_path / "sleeper.out")
    wait_for(sleeper, run, stepped(3))
    frozen(sleeper)
    seems_gone(run)
    by_another(fork_server, tmp_path)
    before = everything_in(run)
    sleeper.send(signal.SIGCONT)
    assert sleeper.wait(LIMIT_S) == 6, sleeper.said()
    assert everything_in(run) == before
    said = sleeper.said()
    assert said.count("has taken this run over, and has ended, while this one stood still") == 1
    assert "Traceback" not in said
