"""Signals to real runs in each phase: the run is saved, and the exit code names the signal."""

import os
import signal
import time
from pathlib import Path

import pytest

from mptui.engine.checkpoint.files import checkpoints, read_newest
from mptui.engine.mailbox import INSIST_S
from mptui.events import CheckpointSaved, EpochFinished, Step
from mptui.lab.selftest import outcome_of
from mptui.runs.remote.feed import Connection
from mptui.runs.store.directory import RANKS, read_summary
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import owner_of
from tests.chaos.runs import LIMIT_S, LONG, LOOK_S, UNET, Case, in_phase, started, stepped, wait_for
from tests.data.images import class_folders
from tests.forks import FORKING, rank_pids
from tests.program import Program
from tests.ranks.cluster import wait_until
from tests.ranks.test_chains import steps

FOLDER = ("--model", "resnet18", "--batch-size", "4", "--seed", "3")


def catches(child, number):
    """Whether the process has installed a handler for a signal."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (number - 1) & 1)


def ends(child, run, number, code):
    """Send a signal and check how the run ends: saved at its current step, with the right exit code."""
    child.send(number)
    assert child.wait(LIMIT_S) == code, child.output()
    assert "Traceback" not in child.output()
    if not run.is_dir():
        return
    summary = read_summary(run)
    assert (summary["status"], summary["exit_code"]) == ("stopped", code)
    steps = [event.step for event in read_journal(run) if isinstance(event, Step)]
    if steps:
        assert read_newest(run / "checkpoints")[0].step == steps[-1]
    assert not list(run.rglob("*.partial"))
    assert not (run / "lock.json").exists()


# what to run, and the condition on the journal at which the signal is sent
PHASES = {
    "preparing": (
        LONG.but(data__samples=4000, data__image_size=64, training__epochs=9),
        in_phase("warming_up"),
    ),
    "warming up": (
        LONG.but(training__accumulate=1000, data__samples=4000, training__epochs=9),
        in_phase("warming_up"),
    ),
    "training": (LONG, stepped(3)),
    "validating": (LONG.but(data__samples=512), in_phase("validating")),
    "between two epochs": (LONG.but(data__samples=4), stepped(2)),
    "inside a window": (LONG.but(training__accumulate=40, data__samples=640), stepped(1)),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_is_seen_in_every_phase(fork_server, tmp_path, phase):
    case, seen = PHASES[phase]
    child = started(fork_server, case, tmp_path, "run")
    wait_for(child, tmp_path / "run", seen)
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


def test_a_stop_is_seen_before_there_is_a_run(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    while not catches(child, signal.SIGTERM):
        time.sleep(LOOK_S)
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


def test_a_stop_is_seen_while_files_are_looked_at(fork_server, tmp_path):
    data = class_folders(tmp_path / "data", {"a": 300, "b": 300})
    case = Case("folder", (*FOLDER, "--data", str(data)), {"data.image_size": 32})
    child = started(fork_server, case, tmp_path, "run")
    wait_for(child, tmp_path / "run", in_phase("scanning"))
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


def test_a_stop_is_seen_while_paused(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(1))
    connection = Connection(tmp_path / "run")
    connection.send("pause")
    wait_for(child, tmp_path / "run", in_phase("paused"))
    ends(child, tmp_path / "run", signal.SIGTERM, 143)
    connection.close()


def test_a_stop_is_seen_while_saving(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(1))
    child.send(signal.SIGUSR2)
    wait_for(child, tmp_path / "run", in_phase("saving"))
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


def test_a_stop_is_seen_while_a_run_is_restored(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(2))
    ends(child, tmp_path / "run", signal.SIGINT, 130)
    size = (tmp_path / "run" / "events.jsonl").stat().st_size
    again = started(fork_server, LONG, tmp_path, "run")
    while (tmp_path / "run" / "events.jsonl").stat().st_size == size:
        time.sleep(LOOK_S)
    ends(again, tmp_path / "run", signal.SIGTERM, 143)


def test_what_slurm_sends_saves_and_stops(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(2))
    ends(child, tmp_path / "run", signal.SIGUSR1, 143)


def test_usr2_saves_and_hup_does_nothing_and_the_run_is_the_same(fork_server, tmp_path, undisturbed):
    case = UNET.but(checkpoint__every_steps=1_000_000)
    child = started(fork_server, case, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(1))
    child.send(signal.SIGHUP)
    child.send(signal.SIGUSR2)
    assert child.wait(LIMIT_S) == 0, child.output()
    outcome = outcome_of(tmp_path / "run")
    assert outcome == undisturbed
    events = list(read_journal(tmp_path / "run"))
    assert any(isinstance(event, EpochFinished) for event in events)
    # the signal may come after the last step; usually it does not
    asked = [e for e in events if isinstance(e, CheckpointSaved) and e.reason == "asked"]
    assert all(event.step <= 8 for event in asked)


def test_a_second_interrupt_ends_at_once_and_the_older_checkpoint_is_whole(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(2))
    child.send(signal.SIGUSR2)
    wait_for(child, tmp_path / "run", lambda events: any(isinstance(e, CheckpointSaved) for e in events))
    child.send(signal.SIGINT)
    time.sleep(INSIST_S)
    if child.poll() is None:
        child.send(signal.SIGINT)
    assert child.wait(LIMIT_S) == 130
    assert checkpoints(tmp_path / "run" / "checkpoints")
    assert read_newest(tmp_path / "run" / "checkpoints")[1] == []


def test_an_interrupt_that_reaches_all_processes_is_one_request(tmp_path):
    """As of a batch system, by two ways: to each process of the job, and passed on by its parent."""
    run = tmp_path / "run"
    arguments = LONG.arguments(tmp_path, "run")
    group = Program(*arguments, "--nproc-per-node", "2", "--device", "cpu", call=FORKING)
    wait_until(lambda: group.poll() is not None or steps(run) >= 3)
    ranks = rank_pids(run / RANKS)
    assert set(ranks) == {0, 1}
    for pid in (group.pid, owner_of(run / RANKS), *ranks.values()):
        os.kill(pid, signal.SIGINT)
    _, said = group.communicate()
    assert group.returncode == 130, said
    summary = read_summary(run)
    assert (summary["status"], summary["exit_code"]) == ("stopped", 130)
    assert summary.get("lost") is None
    taken = [event.step for event in read_journal(run) if isinstance(event, Step)]
    assert read_newest(run / "checkpoints")[0].step == taken[-1]
