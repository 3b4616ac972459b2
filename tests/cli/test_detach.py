"""Runs without a terminal: started in the background, followed and stopped from other processes."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mptui.events import Step
from mptui.io.own_files import mark_run
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import owner_of
from tests.cli.test_run import TINY
from tests.made.json_documents import checked, failed
from tests.made.waiting import wait_until
from tests.program import DEADLINE_S, Program, run_to_end

pytestmark = pytest.mark.slow

SMALL = {
    **TINY,
    "MPTUI_MODEL_NAME": "unet",
    "MPTUI_MODEL_WIDTH": "4",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_DATA_WORKERS": "0",
}
ENDLESS = {**SMALL, "MPTUI_TRAINING_EPOCHS": "100000"}


def mptui(folder, *arguments, environ=None):
    return run_to_end(*arguments, "--runs-dir", folder, environ={**SMALL, **(environ or {})})


@pytest.fixture
def folder(tmp_path):
    """The runs directory; none of its runs outlives the test."""
    yield tmp_path
    for run in tmp_path.iterdir():
        if (owner := owner_of(run)) is not None:
            os.kill(owner, signal.SIGKILL)


def steps(run):
    return [event for event in read_journal(run) if isinstance(event, Step)]


def summary(run):
    return json.loads((run / "summary.json").read_text())


def test_a_detached_run_gives_the_shell_back_and_is_stopped_with_a_checkpoint(folder):
    # a pipe, as in $(mptui run --detach): it must be closed while the run continues
    started = mptui(folder, "run", "--detach", "--json", "--name", "away", environ=ENDLESS)
    assert started.returncode == 0, started.stderr
    told = checked("run --detach", json.loads(started.stdout))
    run = folder / "away"
    assert (told["run"], told["directory"], told["pid"]) == ("away", str(run), owner_of(run))
    process = psutil.Process(told["pid"])
    assert os.getsid(process.pid) == process.pid
    opened = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]  # noqa: PTH115
    assert opened == [os.devnull, str(run / "console.log"), str(run / "console.log")]
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: steps(run))
    taken = len(steps(run))
    wait_until(lambda: len(steps(run)) > taken)

    again = mptui(folder, "resume", "away", "--detach")
    assert again.returncode == 6
    assert str(process.pid) in again.stderr

    stopped = mptui(folder, "stop", "away")
    assert stopped.returncode == 0, stopped.stderr
    assert "away is stopped after step" in stopped.stdout
    (place,) = [line for line in stopped.stdout.splitlines() if line.startswith("checkpoint: ")]
    assert os.path.isdir(place.removeprefix("checkpoint: "))  # noqa: PTH112
    assert owner_of(run) is None
    assert (summary(run)["status"], summary(run)["exit_code"]) == ("stopped", 0)

    once_more = mptui(folder, "stop", "away")
    assert once_more.returncode == 0
    assert "away is not running; it is stopped after step" in once_more.stdout


def test_a_run_without_a_socket_is_stopped_by_a_signal(folder):
    assert mptui(folder, "run", "--detach", "--name", "mute", environ=ENDLESS).returncode == 0
    run = folder / "mute"
    (run / "control.sock").unlink()
    wait_until(lambda: steps(run))
    owner = owner_of(run)
    assert owner is not None
    os.kill(owner, signal.SIGSTOP)
    late = mptui(folder, "stop", "mute", "--timeout", "0.2")
    os.kill(owner, signal.SIGCONT)
    assert late.returncode == 8
    told = [line for line in late.stderr.splitlines() if "asked to stop" in line or "kill -9" in line]
    assert (
        f"process {owner} was asked to stop 0.2 s ago and is suspended (to continue it: kill -CONT {owner}"
        in told[0]
    )
    assert f"mptui attach {run}" in told[1]
    wait_until(lambda: owner_of(run) is None)  # it executes the request as soon as it can
    assert "stopped after step" in mptui(folder, "stop", "mute").stdout
    assert summary(run)["exit_code"] == 143


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_terminal_that_closes_while_it_starts_keeps_no_run_from_starting(folder, number):
    process = Program("run", "--detach", "--name", "away", "--runs-dir", folder, environ=ENDLESS)
    wait_until(lambda: psutil.Process(process.pid).children())
    (run_process,) = psutil.Process(process.pid).children()
    run_process.suspend()  # or it might be ready, and the first process end, before the signal
    if number == signal.SIGHUP:
        os.killpg(process.pid, number)
    else:
        process.kill()
    assert process.wait(DEADLINE_S) == -number
    run_process.resume()
    run = folder / "away"
    wait_until(lambda: len(steps(run)) > 3)
    assert mptui(folder, "stop", "away").returncode == 0
    assert summary(run)["status"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--profile", "fsat"], 2, "fast"),
        (["--epochs", "many"], 2, "--epochs"),
        (["--data", "./not/there"], 3, "not/there"),
        (["--set", "model.weights=not-there.pth"], 2, "not-there.pth"),
        (["--set", "model.depth=6"], 2, "data.image_size"),
    ],
)
def test_a_mistake_is_told_at_once_and_leaves_nothing(folder, arguments, code, said):
    ended = mptui(folder, "run", "--detach", *arguments)
    assert ended.returncode == code
    assert said in ended.stderr
    assert ended.stdout == ""
    assert list(folder.iterdir()) == []


def test_a_detached_run_or_resume_that_fails_as_it_begins_is_told_with_its_exit_code(folder):
    data = folder / "data"
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(b"no picture")
    about = ("--name", "junk", "--data", data, "--runs-dir", folder)
    begun = run_to_end("run", "--detach", "--json", *about, environ=TINY)
    assert begun.returncode == 3
    document = failed(json.loads(begun.stdout))
    assert (document["run"], document["exit_code"]) == ("junk", 3)
    assert "3 of 3 samples can't be used" in document["error"]
    wait_until(lambda: owner_of(folder / "junk") is None)
    again = run_to_end("resume", "junk", "--detach", "--runs-dir", folder, environ=TINY)
    assert again.returncode == 3
    assert "mptui: 3 of 3 samples can't be used" in again.stderr
    assert again.stdout == ""


@pytest.mark.parametrize(
    ("variable", "name"), [("SLURM_JOB_ID", "SLURM"), ("TORCHELASTIC_RUN_ID", "torchrun")]
)
def test_nothing_is_detached_under_a_launcher(folder, variable, name):
    ended = mptui(folder, "run", "--detach", environ={variable: "7"})
    assert ended.returncode == 2
    assert name in ended.stderr
    assert list(folder.iterdir()) == []


def isolated(folder, *arguments):
    """A run in a separate process that has taken a step: the console's process, and the run's."""
    words = ("run", "--isolate", "--name", "apart", "--runs-dir", folder, *arguments)
    process = Program(*words, environ=ENDLESS)
    run = folder / "apart"
    wait_until(lambda: len(steps(run)) > 3)
    owner = owner_of(run)
    assert owner is not None
    assert owner != process.pid
    return process, owner


def test_an_isolated_run_stops_for_this_console_and_its_exit_code_is_ours(folder):
    process, _ = isolated(folder, "--json")
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert json.loads(told) == summary(folder / "apart")
    assert summary(folder / "apart")["status"] == "stopped"


def test_an_isolated_run_is_shown_here_and_its_death_is_told(folder):
    process, owner = isolated(folder)
    wait_until(lambda: "Epoch 1/" in (folder / "apart" / "console.log").read_text())
    os.kill(owner, signal.SIGKILL)
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert "Epoch 1/" in told
    assert "the training process recorded no end" in told
    assert "mptui resume" in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["attach"], 6, "no runs in"),
        (["attach", "nothing"], 6, "nothing"),
        (["stop", "nothing"], 6, "nothing"),
    ],
)
def test_a_run_that_is_not_there_is_told(folder, arguments, code, said):
    ended = mptui(folder, *arguments)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_a_terminal_attach_says_so_and_several_runs_are_named(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        mark_run(folder / name)
        (folder / name / "run.toml").write_text("")
    ended = mptui(folder, "attach", "one")
    assert ended.returncode == 2
    assert "needs a terminal" in ended.stderr
    code = (
        "import pathlib, sys; from mptui.runs.store.directory import claim; "
        "[claim(pathlib.Path(each)) for each in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(folder / "one"), str(folder / "two")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        ended = mptui(folder, "attach")
        owner.kill()
    assert ended.returncode == 2
    assert "2 runs are running: one, two" in ended.stderr
