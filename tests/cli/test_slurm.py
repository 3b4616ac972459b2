"""`mptui slurm`: the script that bash runs, with stand-ins for the commands of a cluster."""

import subprocess

import pytest

from mptui.cli.main import _exit_code

STUBS = {
    "sbatch": 'cat > "$SENT"; echo "Submitted batch job 7"',
    "scontrol": 'printf "node1\\nnode2\\n"',
    "srun": 'printf "%s\\n" "$@"',
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The commands of a cluster on PATH; returns the file that `sbatch` receives."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in STUBS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SENT", str(tmp_path / "sent"))
    monkeypatch.setenv("SLURM_JOB_ID", "20003")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("SLURM_NNODES", "2")
    return tmp_path / "sent"


def words_for_srun(script):
    """Run a script; return the arguments that srun received, from mptui's command on."""
    ran = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    words = ran.stdout.splitlines()
    return words[words.index("run") :]


def test_two_nodes_have_a_launcher_each_that_meet_at_the_first_one(cluster, capsys):
    flags = ["--model", "unet", "--data", "my data", "--set", "model.width=4"]
    job = ["--nodes", "2", "--gpus-per-node", "4", "--cpus-per-node", "9", "--time", "1:00:00"]
    code = _exit_code(["slurm", *job, "--partition", "long", "--sbatch", "account=a b", *flags], debug=False)
    script = capsys.readouterr().out
    assert code == 0
    lines = {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert lines >= {"nodes=2", "ntasks-per-node=1", "gpus-per-node=4", "cpus-per-task=9", "time=1:00:00"}
    assert lines >= {"partition=long", "signal=USR1@120", "requeue", "open-mode=append", "account=a b"}
    group = ["--nproc-per-node", "4", "--nnodes", "2", "--rdzv-endpoint", "node1:20003"]
    assert words_for_srun(script) == ["run", *flags, *group, "--name", "slurm-20003", "--resume"]
    assert not cluster.exists()


def test_it_is_submitted_with_the_name_of_the_run(cluster, capsys):
    assert _exit_code(["slurm", "--submit", "--name", "night", "--model", "unet"], debug=False) == 0
    assert capsys.readouterr().out == "Submitted batch job 7\n"
    words = words_for_srun(cluster.read_text())
    assert words == ["run", "--model", "unet", "--name", "night", "--resume"]  # one GPU needs no launcher


def test_tasks_of_an_array_are_runs_of_their_own(cluster, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert _exit_code(["slurm", "--sbatch", "array=0-3", "--name", "seeds"], debug=False) == 0
    assert words_for_srun(capsys.readouterr().out)[-3:] == ["--name", "seeds-3", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.epoch=3"], "training.epoch"),
        (["--modle", "unet"], "No such option: --modle"),
        (["--detach"], "--detach: not for a job"),
        (["--sbatch", "a=1\nrm"], "not a setting of sbatch"),
        (["--name", "../x"], "not a valid name"),
    ],
)
def test_mistakes_are_told_before_the_job_waits(cluster, capsys, arguments, message):
    assert _exit_code(["slurm", "--submit", *arguments], debug=False) == 2
    assert message in capsys.readouterr().err
    assert not cluster.exists()


@pytest.mark.parametrize(
    ("stub", "message"), [(None, "sbatch: No such file"), ("echo no account >&2; exit 1", "no account")]
)
def test_a_refusal_of_sbatch_is_told(cluster, capsys, tmp_path, stub, message):
    path = tmp_path / "bin" / "sbatch"
    path.unlink() if stub is None else path.write_text(f"#!/bin/bash\n{stub}\n")
    assert _exit_code(["slurm", "--submit"], debug=False) == 2
    assert message in capsys.readouterr().err
