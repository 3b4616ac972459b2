"""The launcher of a group, with small programs as ranks."""

import json
import os
import signal
import socket
import textwrap
import time

import pytest

from mptui.events import PhaseChanged, RunFinished, Warned
from mptui.io.own_files import mark_run
from mptui.runs.store.directory import read_summary, status_of, write_json
from mptui.runs.store.journal import read_journal
from tests.program import Program

pytestmark = pytest.mark.program

LAUNCH = """
import json, sys
from functools import partial
from pathlib import Path
from mptui.cli.train.host import told_wait
from mptui.cli.train.signals import Signals
from mptui.errors import MptuiError
from mptui.runs.launch import launcher
from mptui.runs.launch.launcher import train_in_group
from mptui.processes.rank_place import Group
launcher.STOPPED_S = 0.3
run, code, group = json.loads(sys.argv.pop(1))
signals = Signals()
try:
    group = Group(**group)
    waits = partial(told_wait, signals=signals)
    sys.exit(train_in_group(group, ["-c", code], Path(run), signals.attach, told_wait=waits))
except MptuiError as error:
    print(json.dumps([error.message, error.hint]), flush=True)
    sys.exit(error.exit_code)
"""
RANK = """
import os, signal, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def say(*words):
    print(*words, file=sys.stderr, flush=True)
def wait():
    while True:
        time.sleep(0.02)
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    (path / "ranks").mkdir(parents=True)
    mark_run(path)
    return path


def launched(run, code, processes=2, restarts=2, **nodes):
    group = {"processes": processes, "max_restarts": restarts, **nodes}
    arguments = json.dumps([str(run), RANK + textwrap.dedent(code), group])
    return Program(LAUNCH, arguments, call="tests.program:execute")


def warnings_of(run):
    return [event.message for event in read_journal(run) if isinstance(event, Warned)]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSTOP, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)]
)
def test_a_lost_rank_is_told_and_all_start_again(run, number):
    group = launched(
        run,
        f"""
        say("rank", rank, "at start", restart)
        if restart == 0:
            if rank == 1:
                os.kill(os.getpid(), {int(number)})
            wait()
        """,
    )
    out, err = group.communicate()
    assert group.returncode == 0, out + err
    (said,) = warnings_of(run)
    assert said.startswith("rank 1 (process ")
    how = "suspended (SIGSTOP)" if number == signal.SIGSTOP else f"killed by {number.name}"
    assert how in said
    assert "its last output: rank 1 at start 0 (ranks/1.log); restart 1 of 2" in said
    assert "rank 0 at start 1" in (run / "ranks" / "0.log").read_text()
    assert [w["code"] for w in read_summary(run)["warnings"]] == ["rank_lost"]
    assert [event.phase for event in read_journal(run) if isinstance(event, PhaseChanged)] == ["restarting"]


def test_a_rank_that_tells_rank_0_nothing_of_its_memory_ends_the_run_as_out_of_memory(run):
    code = "if rank: say('mptui: out of memory\\n  set memory.micro_batch'); sys.exit(5)\nwait()"
    group = launched(run, code)
    group.communicate()
    assert group.returncode == 5
    assert status_of(run)["status"] == "out_of_memory"


def test_the_group_ends_when_each_start_fails_and_the_reason_is_in_the_journal(run):
    group = launched(run, "if rank: raise RuntimeError(f'no port at {restart}')\nwait()", restarts=1)
    out, _ = group.communicate()
    message, hint = json.loads(out.splitlines()[-1])
    assert group.returncode == 1
    assert "ended after 1 restart: rank 1" in message
    assert "ended with exit code 1; its last output: RuntimeError: no port at 1" in message
    assert f"mptui resume {run}" in hint
    *_, end = read_journal(run)
    assert isinstance(end, RunFinished)
    assert (end.status, end.message) == ("failed", message)
    assert status_of(run)["status"] == "failed"
    assert len(warnings_of(run)) == 2


def test_a_stop_before_rank_0_has_begun_is_the_end_of_a_run_that_had_ended_before(run):
    write_json(run / "summary.json", {"status": "completed", "exit_code": 0, "optimizer_steps": 7})
    group = launched(run, "say('ready')\nwait()")
    logs = [run / "ranks" / f"{rank}.log" for rank in (0, 1)]
    while not all(log.exists() and "ready" in log.read_text() for log in logs):
        assert group.poll() is None
        time.sleep(0.02)
    group.send_signal(signal.SIGTERM)
    group.communicate()
    assert group.returncode == 143
    *_, end = read_journal(run)
    assert isinstance(end, RunFinished)
    assert (end.status, end.exit_code, end.step) == ("stopped", 143, 7)
    assert status_of(run)["status"] == "stopped"


def test_an_error_that_a_restart_would_meet_again_ends_the_group_at_once(run):
    group = launched(run, "say('mptui: no data\\n  look there'); sys.exit(3)", restarts=2)
    out, _ = group.communicate()
    assert group.returncode == 3
    assert json.loads(out.splitlines()[-1]) == ["no data", "look there"]
    assert not (run / "ranks" / "0.before.log").exists()


@pytest.mark.parametrize("saves", [True, False])
def test_a_bug_is_not_met_again_and_again_unless_the_run_gets_further(run, saves):
    """The second start meets it without a save in between; a third one is not made."""
    (run / "checkpoints").mkdir()
    group = launched(
        run,
        f"""
        if restart == 3:
            sys.exit(0)
        link = {str(run / "checkpoints" / "last")!r}
        if {saves} and rank == 0:
            if restart:
                os.unlink(link)
            os.symlink(f"step-{{restart:09}}", link)
        if rank == 1:
            while {saves} and not os.path.realpath(link).endswith(f"step-{{restart:09}}"):
                time.sleep(0.01)
            raise KeyError("a bug")
        wait()
        """,
        restarts=3,
    )
    out, err = group.communicate()
    assert group.returncode == (0 if saves else 1), out + err
    assert len(warnings_of(run)) == (3 if saves else 2)
    if not saves:
        message, _ = json.loads(out.splitlines()[-1])
        assert message.startswith("the group of processes ended after 1 restart: rank 1 (process")
        assert message.endswith("KeyError: 'a bug' (ranks/1.log) (again, without a save in between)")


def test_a_mistake_in_a_persons_own_code_ends_the_group_at_once(run):
    told = "mptui: net.py:3: KeyError: 'a'\\n  net.py:3 in forward: x['a']\\n  correct your code"
    group = launched(run, f'say("{told}"); sys.exit(1)')
    out, _ = group.communicate()
    assert group.returncode == 1
    message = "net.py:3: KeyError: 'a'\n  net.py:3 in forward: x['a']"
    assert json.loads(out.splitlines()[-1]) == [message, "correct your code"]
    *warnings, end = read_journal(run)
    assert isinstance(end, RunFinished)
    assert (warnings, end.message) == ([], message)


@pytest.mark.slow
def test_each_rank_that_is_killed_is_told_though_its_group_has_been_ending(run):
    group = launched(
        run,
        f"""
        if restart == 0:
            def end(*_):
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL if rank == 2 else end)
            say("ready")
            logs = [f"{run}/ranks/{{other}}.log" for other in (0, 2)]
            while rank == 1 and not all(os.path.exists(log) and "ready" in open(log).read() for log in logs):
                time.sleep(0.01)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            wait()
        """,
        processes=3,
    )
    out, err = group.communicate()
    assert group.returncode == 0, out + err
    first, second = warnings_of(run)
    assert first.startswith("rank 1 (process")
    assert first.endswith("restart 1 of 2 from the last save")
    assert second.startswith("rank 0 (process")
    assert second.endswith("was killed by SIGKILL; its last output: ready (ranks/0.log)")


@pytest.mark.parametrize(
    "to_launcher", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["launcher", "rank"]
)
def test_a_stop_waits_for_the_rank_that_saves_longest(run, to_launcher):
    group = launched(
        run,
        """
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        say("ready", os.getpid())
        while not asked:
            time.sleep(0.01)
        if rank == 0:
            time.sleep(0.5)
            say("saved, asked", len(asked))
        sys.exit(143)
        """,
    )
    logs = [run / "ranks" / f"{rank}.log" for rank in (0, 1)]
    while not all(log.exists() and "ready" in log.read_text() for log in logs):
        assert group.poll() is None
        time.sleep(0.02)
    if to_launcher:
        group.send_signal(signal.SIGUSR1)
    else:  # ranks agree by themselves: here each gets the signal
        for log in logs:
            os.kill(int(log.read_text().split()[1]), signal.SIGTERM)
    group.communicate()
    assert group.returncode == 143
    assert "saved, asked 1" in logs[0].read_text()
    assert warnings_of(run) == []


@pytest.mark.slow
def test_launchers_of_two_nodes_restart_together(run):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    code = """
    starts = f"starts-{rank}"
    first = not os.path.exists(starts)
    open(starts, "a").close()
    say("rank", rank, "of", os.environ["WORLD_SIZE"], "on node", os.environ["GROUP_RANK"])
    if first:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        wait()
    """
    code = f"import os\nos.chdir({str(run.parent)!r})\n" + textwrap.dedent(code)
    nodes = [launched(run, code, processes=1, nodes=2, endpoint=endpoint) for _ in range(2)]
    ends = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ends
    (said,) = warnings_of(run)
    assert "rank 1 (process" in said
    for rank in range(2):
        for name in (f"{rank}.log", f"{rank}.before.log"):
            assert (run / "ranks" / name).read_text() == f"rank {rank} of 2 on node {rank}\n"
