"""A suspended process wakes after another one took over its run: it ends and changes no files."""

import fcntl
import json
import os
import shutil
import signal
from itertools import product
from pathlib import Path

import pytest

from mptui.runs.store.directory import read_summary
from mptui.runs.store.lock import PRIVATE
from tests.chaos.runs import LIMIT_S, LONG, started, stepped, trained, wait_for
from tests.made.waiting import wait_until
from tests.tools.faulty_disk import run_on_disk

pytestmark = pytest.mark.program


def frozen(child, run):
    """Stop a process, as closing a laptop's lid does, at a moment at which its run can be taken over."""
    while True:
        child.send(signal.SIGSTOP)
        stands_still(child)
        if can_be_taken(run):
            return
        child.send(signal.SIGCONT)


def can_be_taken(run):
    """Whether no thread of a stopped process stands in a change of the directory."""
    folder = os.open(run / PRIVATE, os.O_RDWR)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    return True


def stands_still(child):
    state = Path(f"/proc/{child.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")


def seems_gone(run):
    """Make the lock look like a stale one of another machine."""
    lock = json.loads((run / "lock.json").read_text())
    (run / "lock.json").write_text(json.dumps({**lock, "boot": "another", "host": "elsewhere"}))
    os.utime(run / "lock.json", (1, 1))


def everything_in(run):
    """Return each file with its bytes and time, and each link with its target.

    Excludes the process's own temporary names, which it may remove.
    """
    found = {}
    for path in run.rglob("*"):
        if ".partial" in str(path):
            continue
        if path.is_symlink():
            found[path] = path.readlink()
        elif path.is_file():
            found[path] = path.stat().st_mtime_ns, path.read_bytes()
    return found


def resumed_and_ended(_server, folder):
    saved = [int(path.name[5:14]) for path in (folder / "run" / "checkpoints").glob("step-*")]
    trained(LONG.but(training__max_steps=max(saved, default=0) + 1), folder, "run")
    assert read_summary(folder / "run")["status"] == "completed"
    assert not (folder / "run" / "lock.json").exists()


def journal_from(run, start):
    return (run / "events.jsonl").read_bytes()[start:].decode()


def resumed_and_killed(server, folder):
    run, before = folder / "run", (folder / "run" / "events.jsonl").stat().st_size
    other = started(server, LONG, folder, "run", output=folder / "other.out")
    wait_for(other, run, lambda _: '"run_started"' in journal_from(run, before))
    other.send(signal.SIGKILL)
    assert other.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize(
    "by_another", [resumed_and_ended, pytest.param(resumed_and_killed, marks=pytest.mark.slow)]
)
def test_a_process_that_wakes_leaves_the_run_to_who_took_it(fork_server, tmp_path, by_another):
    run = tmp_path / "run"
    sleeper = started(fork_server, LONG, tmp_path, "run", output=tmp_path / "sleeper.out")
    wait_for(sleeper, run, stepped(3))
    frozen(sleeper, run)
    seems_gone(run)
    by_another(fork_server, tmp_path)
    before = everything_in(run)
    sleeper.send(signal.SIGCONT)
    assert sleeper.wait(LIMIT_S) == 6, sleeper.output()
    assert everything_in(run) == before
    said = sleeper.output()
    assert said.count("has taken this run over, and has ended, while this one was suspended") == 1
    assert "Traceback" not in said


ENDING = LONG.but(training__max_steps=6, checkpoint__every_steps=1, checkpoint__keep=1)
PLACES = {
    "summary.json at the start": ("*summary.json*", 0, 6),
    "a checkpoint's state": ("*/state.json", 1, 6),
    "the folder of the checkpoints": ("*/checkpoints", 1, 6),
    "the folder, before an older checkpoint goes": ("*/checkpoints", 3, 6),
    "summary.json at the end": ("*summary.json*", 1, 6),
    "index.json": ("*index.json*", 0, 0),  # the run has ended by then
}
"""The `fsync` in which a process is stopped: the file, which call, and the resulting exit code."""


FAST = {
    ("a checkpoint's state", resumed_and_ended),
    ("index.json", resumed_and_ended),
}
CASES = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow)
    for case in product(PLACES, (resumed_and_ended, resumed_and_killed))
]


@pytest.mark.parametrize(("place", "by_another"), CASES)
def test_a_process_that_was_stopped_in_a_write_changes_nothing_more(fork_server, tmp_path, place, by_another):
    name, at, code = PLACES[place]
    while True:
        run = tmp_path / "run"
        disk = {"folder": str(run), "at": at, "error": "stop", "only": ["fsync"], "name": name}
        sleeper = run_on_disk(fork_server, disk, ENDING.arguments(tmp_path, "run"), tmp_path / "sleeper.out")
        stands_still(sleeper)
        if can_be_taken(run):
            break
        sleeper.send(signal.SIGKILL)  # another thread stood in a write: the next one will not
        sleeper.wait(LIMIT_S)
        shutil.rmtree(run)
    seems_gone(run)
    by_another(fork_server, tmp_path)
    before = everything_in(run)
    sleeper.send(signal.SIGCONT)
    assert sleeper.wait(LIMIT_S) == code, sleeper.output()
    assert everything_in(run) == before
    assert "Traceback" not in sleeper.output()
