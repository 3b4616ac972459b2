"""Signals to runs in each phase: the run is saved, and the exit code names the signal."""

import os
import signal
import time
from pathlib import Path

import pytest

from mptui.engine.checkpoint.files import checkpoints, read_newest
from mptui.engine.mailbox import INSIST_S
from mptui.events import CheckpointSaved, EpochFinished, Step
from mptui.runs.remote.feed import Connection
from mptui.runs.store.directory import RANKS, read_summary
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import owner_of
from tests.chaos.killer import outcome_of
from tests.chaos.runs import (
    LIMIT_S,
    LONG,
    LOOK_S,
    UNET,
    Case,
    Signalled,
    in_phase,
    started,
    stepped,
    wait_for,
)
from tests.data.images import class_folders
from tests.forks import FORKING, rank_pids
from tests.made.waiting import wait_until
from tests.program import Program
from tests.ranks.test_chains import steps

FOLDER = ("--model", "resnet18", "--batch-size", "4", "--seed", "3")


def catches(child, number):
    """Whether the process has installed a handler for a signal."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (number - 1) & 1)


def ends(child, run, number, code):
    """Send a signal to a process and check how its run ends."""
    child.send(number)
    assert child.wait(LIMIT_S) == code, child.output()
    has_stopped(run, code, child.output())


def has_stopped(run, code, told):
    """Check that a run has ended by a signal: saved at its last step, with the right exit code."""
    assert "Traceback" not in told
    if not run.is_dir():
        return
    summary = read_summary(run)
    assert (summary["status"], summary["exit_code"]) == ("stopped", code)
    steps = [event.step for event in read_journal(run) if isinstance(event, Step)]
    if steps:
        assert read_newest(run / "checkpoints")[0].step == steps[-1]
    assert not list(run.rglob("*.partial"))
    assert not (run / "lock.json").exists()


def stops(case, folder, seen, number=signal.SIGTERM, code=143):
    """Train in this process, and send it a signal once the journal meets a condition."""
    ended = Signalled(case, folder, seen, number)
    assert ended.code == code, ended.told
    has_stopped(folder / "run", code, ended.told)


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
    "validating": (LONG.but(data__samples=64), in_phase("validating")),
    "between two epochs": (LONG.but(data__samples=4), stepped(2)),
    "inside a window": (LONG.but(training__accumulate=8, data__samples=128), stepped(1)),
}


FAST = {"warming up", "validating", "inside a window"}


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase in FAST else pytest.mark.slow) for phase in PHASES]
)
def test_a_stop_is_seen_in_every_phase(tmp_path, phase):
    stops(PHASES[phase][0], tmp_path, PHASES[phase][1])


@pytest.mark.program
def test_a_process_that_trains_is_stopped(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(3))
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


@pytest.mark.program
def test_a_stop_is_seen_before_there_is_a_run(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    while not catches(child, signal.SIGTERM):
        time.sleep(LOOK_S)
    ends(child, tmp_path / "run", signal.SIGTERM, 143)


def test_a_stop_is_seen_while_files_are_looked_at(tmp_path):
    data = class_folders(tmp_path / "data", {"a": 300, "b": 300})
    case = Case("folder", (*FOLDER, "--data", str(data)), {"data.image_size": 32})
    stops(case, tmp_path, in_phase("scanning"))


def test_a_stop_is_seen_while_paused(tmp_path):
    def seen(events):
        if stepped(1)(events) and not connections:
            connections.append(Connection(tmp_path / "run"))
            connections[0].send("pause")
        return in_phase("paused")(events)

    connections: list[Connection] = []
    stops(LONG, tmp_path, seen)
    connections[0].close()


def test_a_stop_is_seen_while_saving(tmp_path):
    def seen(events):
        if stepped(1)(events) and not asked:
            asked.append(signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGUSR2)
        return in_phase("saving")(events)

    asked: list[signal.Signals] = []
    stops(LONG, tmp_path, seen)


def test_a_stop_is_seen_while_a_run_is_restored(tmp_path):
    stops(LONG, tmp_path, stepped(2), signal.SIGINT, 130)
    before = len(list(read_journal(tmp_path / "run")))
    stops(LONG, tmp_path, lambda events: len(events) > before)


def test_what_slurm_sends_saves_and_stops(tmp_path):
    stops(LONG, tmp_path, stepped(2), signal.SIGUSR1)


def test_usr2_saves_and_hup_does_nothing_and_the_run_is_the_same(tmp_path, undisturbed):
    case = UNET.but(checkpoint__every_steps=1_000_000)
    ended = Signalled(case, tmp_path, stepped(1), signal.SIGHUP, signal.SIGUSR2)
    assert ended.code == 0, ended.told
    assert outcome_of(tmp_path / "run") == undisturbed
    events = list(read_journal(tmp_path / "run"))
    assert any(isinstance(event, EpochFinished) for event in events)
    # the signal may come after the last step; usually it does not
    asked = [e for e in events if isinstance(e, CheckpointSaved) and e.reason == "asked"]
    assert all(event.step <= 8 for event in asked)


@pytest.mark.program
@pytest.mark.slow
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


@pytest.mark.program
@pytest.mark.slow
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
