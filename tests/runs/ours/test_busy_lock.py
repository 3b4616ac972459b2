"""Another process that keeps a run's lock holds its saves up, and loses nothing of them."""

import subprocess
import sys
import time

import pytest

from mptui.engine.checkpoint import saver
from mptui.engine.checkpoint.files import read_newest
from mptui.errors import DiskError
from mptui.events import CheckpointSaved, Event, Step, Warned
from mptui.runs.store import lock
from mptui.runs.store.directory import CHECKPOINTS
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, session_of
from tests.made.waiting import wait_until
from tests.runs.control.clients import DEADLINE_S

STEPS = 6
SETTINGS = {
    **UNET,
    "data.samples": 64,
    "data.cache": "off",
    "training.batch_size": 2,
    "training.max_steps": STEPS,
}
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that keeps the lock of a run until `end`."""

    def __init__(self, run):
        words = [sys.executable, "-c", HOLD, run / lock.PRIVATE]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"held\n"

    def end(self):
        self._process.communicate()


@pytest.fixture
def hold_up(tmp_path, monkeypatch):
    """Return a function that trains until another process keeps the run locked and a save has failed."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(lock, "DIRECTORY_WAIT_S", 0.1)
    monkeypatch.setattr(saver, "RETRY_S", (0.05, 0.1))
    run = tmp_path / "run"
    session = session_of(run, SETTINGS)
    seen: list[Event] = []
    holders: list[Holder] = []

    def begin(stopped):
        def watch(event, *_):
            seen.append(event)
            if isinstance(event, Step) and event.step >= 2 and not holders:
                holders.append(Holder(run))
                if stopped:
                    session.mailbox.stop(None)

        monkeypatch.setattr(session.listen(), "handle", watch)
        session.start()
        wait_until(lambda: warnings(seen))
        return session, seen, holders[0]

    yield begin
    for holder in holders:
        holder.end()


def warnings(events):
    return [each.message for each in events if isinstance(each, Warned) and each.code == "disk"]


@pytest.mark.parametrize(
    "stopped", [pytest.param(False, marks=pytest.mark.slow), True], ids=["completed", "stopped"]
)
def test_the_last_save_waits_for_who_keeps_the_run_locked(hold_up, stopped):
    session, seen, holder = hold_up(stopped)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 5 * lock.DIRECTORY_WAIT_S)
    assert not any(isinstance(each, CheckpointSaved) and each.step >= 2 for each in seen)
    holder.end()
    assert session.wait(DEADLINE_S)
    assert session.result.exit_code == 0
    assert read_newest(session.run / CHECKPOINTS)[0].step >= (2 if stopped else STEPS)
    warned = warnings(read_journal(session.run))[0]
    assert "locked" in warned
    assert "end the process" in warned


def test_a_stop_says_that_the_lock_is_waited_for_and_what_is_lost(hold_up, monkeypatch):
    monkeypatch.setattr(saver, "LAST_WAIT_S", 0.5)
    session, seen, _ = hold_up(stopped=True)
    assert session.wait(DEADLINE_S)
    assert session.result.exit_code == DiskError.exit_code
    (said,) = [each for each in warnings(seen) if "asked to stop while a save waits" in each]
    assert "another process keeps the run locked" in said
    assert "lost: no checkpoint was saved" in said
    assert "bytes" not in said  # the disk has room
    assert session.result.summary["lost"]["steps"] >= 2
