"""A stand-in for a cluster of SLURM on this machine: sbatch, srun and scontrol, and what its controller does.

A step of srun is a process for each node, on this machine: in a `Job`, a fork of the program in its place. As
of a signal before the time limit, all processes of the step get it, but not the shell of the batch script.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from mptui.processes.start import shell_exit_code
from tests.forks import FORKING, words
from tests.made.waiting import wait_until
from tests.program import run_to_end, server

JOB_ID = "4711"
_STUBS = {
    "sbatch": 'cat > "$CLUSTER/job.sh"\necho "Submitted batch job $JOB"',
    "scontrol": """
case $1 in
  requeue) echo "$2" >> "$CLUSTER/requeued" ;;
  show) if [ "$2" = hostnames ]; then for n in $(seq "$SLURM_NNODES"); do echo localhost; done
        else echo "JobState=RUNNING"; fi ;;
esac""",
    "srun": """
while [[ $1 == --* ]]; do shift; done
for node in $(seq 0 $((SLURM_NNODES - 1))); do
  SLURM_PROCID=$node SLURM_NODEID=$node SLURM_STEP_NUM_TASKS=$SLURM_NNODES SLURM_STEP_ID=0 $FORKED "$@" &
done
code=0
for job in $(jobs -p); do wait "$job" || code=$?; done
exit $code""",
    "forked": r"""
process=$CLUSTER/process$SLURM_PROCID
printf '%s\0' "$@" > "$process.words"
env -0 > "$process.new"
mv "$process.new" "$process.environ"
until [ -s "$process.code" ]; do sleep 0.02; done
exit "$(cat "$process.code")"
""",
}
"""Commands. `forked` has a `Job` start a command as a fork, and ends as that does."""


class Cluster:
    """A cluster whose commands are in `folder`/bin.

    Attributes:
        environ: Environment of a login node: the commands are on PATH.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir(parents=True)
        for name, text in _STUBS.items():
            (commands / name).write_text(f"#!/bin/bash\n{text}\n")
            (commands / name).chmod(0o755)
        path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = {"PATH": path, "CLUSTER": str(folder), "JOB": JOB_ID, "OMP_NUM_THREADS": "1"}

    def submit(self, *arguments: object) -> str:
        """`mptui slurm --submit ARGUMENTS`; return the script."""
        ended = run_to_end("slurm", "--submit", *arguments, environ=self.environ)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"Submitted batch job {JOB_ID}\n"
        return (self.folder / "job.sh").read_text()

    def start(self, nodes: int = 1) -> "Job":
        """Start the job, or start it again after it was queued again."""
        for path in (self.folder / "requeued", *self.folder.glob("process*")):
            path.unlink(missing_ok=True)
        return Job(self, nodes)


class Job:
    """The batch script as it runs; each look at it starts and ends what srun has asked for."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self._folder = cluster.folder
        self._step: dict[Path, Any] = {}
        slurm = {"SLURM_JOB_ID": JOB_ID, "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "n[1-9]"}
        self._output = (cluster.folder / "slurm.out").open("a")
        self._script = subprocess.Popen(
            ["bash", str(cluster.folder / "job.sh")],
            env={**os.environ, **cluster.environ, **slurm, "FORKED": "forked"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def send(self, number: int) -> bool:
        """Send a signal to all processes of the step; return whether there were any."""
        processes = []
        for fork in self._step.values():
            if fork.poll() is None:
                process = psutil.Process(fork.pid)
                processes += [process, *process.children(recursive=True)]
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)
        return bool(processes)

    def listens(self) -> bool:
        """Whether mptui's first process has its handlers, so that a signal doesn't just end it."""
        self._look()
        with contextlib.suppress(OSError):
            caught = [_caught(fork.pid) for fork in self._step.values()]
            return bool(caught) and all(mask >> (signal.SIGUSR1 - 1) & 1 for mask in caught)
        return False

    def running(self) -> bool:
        """Whether the script runs."""
        self._look()
        return self._script.poll() is None

    def _look(self) -> None:
        for asked in set(self._folder.glob("process*.environ")) - self._step.keys():
            *command, _ = asked.with_suffix(".words").read_text().split("\0")
            environ = dict(each.split("=", 1) for each in asked.read_text().split("\0") if each)
            streams = (None, self._output.fileno(), self._output.fileno())
            self._step[asked] = server().start(FORKING, *words(command), streams=streams, environ=environ)
        for asked, fork in self._step.items():
            code = asked.with_suffix(".code")
            if not code.exists() and fork.poll() is not None:
                code.write_text(str(shell_exit_code(fork.returncode)))

    def end(self, limit_s: float = 300.0) -> tuple[int, bool]:
        """Wait for the end; return the exit code, and whether the job is queued again."""
        try:
            wait_until(lambda: not self.running(), limit_s)
        finally:
            self._script.kill()
            self._output.close()
        requeued = self._folder / "requeued"
        jobs = requeued.read_text().split() if requeued.exists() else []
        assert jobs in ([], [JOB_ID]), "queued again once at most"
        return self._script.wait(), bool(jobs)

    def output(self) -> str:
        """What the job has printed so far, with all its starts."""
        return (self._folder / "slurm.out").read_text()


def _caught(pid: int) -> int:
    """Return the mask of the signals that a process has handlers for."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
