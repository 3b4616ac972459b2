"""A run in a job of SLURM that is asked to stop: it saves, and the job is queued again. With stand-ins."""

import signal
import subprocess
import sys

import pytest

from mptui.runs.launch.slurm import requeue
from tests.cli.test_detach import steps
from tests.cli.test_run import wait_for
from tests.program import Program, run_to_end

JOB = {"SLURM_JOB_ID": "71", "SLURM_PROCID": "0"}
TASK = {**JOB, "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
TINY = ("--model", "unet", "--set", "model.width=2", "--set", "model.depth=1", "--set", "data.samples=8")
ENDLESS = ("--set", "data.image_size=16", "--batch-size", "4", "--epochs", "100000", "--device", "cpu")


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Put a stand-in of `scontrol` on PATH; returns the file with its calls."""
    path, calls = tmp_path / "bin" / "scontrol", tmp_path / "calls"
    path.parent.mkdir()
    path.write_text(f'#!/bin/bash\necho "$@" >> {calls}\necho "JobState=${{STATE:-RUNNING}}"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return calls


@pytest.mark.parametrize(("environ", "job"), [(JOB, "71"), (TASK, "70_3")], ids=["job", "array"])
def test_a_job_or_one_task_of_an_array_is_queued_again(scontrol, environ, job):
    assert requeue(environ, resumes=True) == f"job {job} is queued again"
    assert scontrol.read_text().splitlines() == [f"show job {job}", f"requeue {job}"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**JOB, "SLURM_PROCID": "1"},
        {**JOB, "RANK": "1"},
        {**JOB, "RANK": "0", "TORCHELASTIC_RUN_ID": "mptui-node1:29500"},
    ],
    ids=["no job", "another task", "another rank", "a rank of our launcher"],
)
def test_only_one_process_of_a_job_does_it(scontrol, environ):
    assert requeue(environ, resumes=True) is None
    assert not scontrol.exists()


def test_reasons_against_it_are_told(scontrol, monkeypatch, tmp_path):
    assert "without --name and --resume" in (requeue(JOB, resumes=False) or "")
    monkeypatch.setenv("STATE", "CANCELLED")
    assert requeue(JOB, resumes=True) == "job 71 is not queued again: it was cancelled"
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/bash\necho disabled >&2; exit 1\n")
    assert requeue(JOB, resumes=True) == "job 71 can't be queued again: disabled"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol: No such file" in (requeue(JOB, resumes=True) or "")


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGUSR1"])
def test_a_run_saves_and_queues_its_job_again(scontrol, tmp_path, signal):
    import signal as signals

    command = ("run", *TINY, *ENDLESS, "--name", "one", "--resume", "--runs-dir", tmp_path / "runs", "-q")
    run = Program(*command, environ=JOB)
    wait_for(lambda: steps(tmp_path / "runs/one"), run)
    run.send_signal(signals.Signals[signal])
    _, err = run.communicate()
    assert run.returncode == 143
    assert "job 71 is queued again" in err
    assert scontrol.read_text().splitlines()[-1] == "requeue 71"
    assert list((tmp_path / "runs/one/checkpoints").iterdir())


@pytest.mark.slow
def test_a_stop_by_a_person_is_final(scontrol, tmp_path):
    command = ("run", *TINY, *ENDLESS, "--name", "one", "--resume", "--runs-dir", tmp_path / "runs", "-q")
    run = Program(*command, environ=JOB)
    wait_for(lambda: steps(tmp_path / "runs/one"), run)
    assert run_to_end("stop", "one", "--runs-dir", tmp_path / "runs").returncode == 0
    run.communicate()
    assert (run.returncode, scontrol.exists()) == (0, False)


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)])
def test_a_signal_that_comes_after_the_end_changes_no_exit_code(number):
    late = f"atexit.register(os.kill, os.getpid(), {int(number)})"
    script = f"import atexit, os; from mptui.cli.main import main; {late}; main()"
    assert (
        subprocess.run([sys.executable, "-c", script, "--version"], stdout=subprocess.DEVNULL).returncode == 0
    )
