"""Batch scripts of SLURM for a run, and their submission.

Source: the manual pages of sbatch and srun.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from mptui.errors import ConfigError
from mptui.text import clean

_SETTING = re.compile(r"[a-z][a-z-]*(=\S.*)?")
_JOB_NAME = "mptui"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """The resources of a job.

    Args:
        command: The command line of `mptui run` on each node, without its name and what follows from the job.
        name: Name of the run; None: the number of the job.
        nodes: Number of nodes.
        gpus_per_node: Number of GPUs on each, with a process for each; 0: one process on the CPU.
        cpus_per_node: Number of processor cores on each; None: the cluster's default.
        time: Time limit as SLURM has it; None: the partition's.
        partition: Partition; None: the cluster's default.
        signal_before_s: Seconds before the time limit at which the run is asked to save.
        settings: Further settings of sbatch, `account=abc`.
    """

    command: Sequence[str]
    name: str | None = None
    nodes: int = 1
    gpus_per_node: int = 1
    cpus_per_node: int | None = None
    time: str | None = None
    partition: str | None = None
    signal_before_s: int = 120
    settings: Sequence[str] = ()


def batch_script(job: BatchJob) -> str:
    """Return the text of the batch script.

    Without `B:`, the signal goes to the processes that srun started, and not to the script's shell.

    Raises:
        ConfigError: A setting can't be written as a line of the script.
    """
    lines = [
        f"job-name={job.name or _JOB_NAME}",
        f"nodes={job.nodes}",
        "ntasks-per-node=1",
        f"gpus-per-node={job.gpus_per_node}" if job.gpus_per_node else "",
        f"cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else "",
        f"time={job.time}" if job.time else "",
        f"partition={job.partition}" if job.partition else "",
        f"signal=USR1@{job.signal_before_s}",
        "requeue",
        "open-mode=append",
        *job.settings,
    ]
    for setting in filter(None, lines):
        if not _SETTING.fullmatch(setting) or clean(setting) != setting:
            raise ConfigError(
                f"#SBATCH --{clean(setting)}: not a setting of sbatch",
                hint="write name or name=value, as --sbatch account=abc",
            )
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH --{setting}" for setting in lines if setting),
            "",
            "# SLURM signals the processes of srun: they save, and queue the job again. This shell waits.",
            "trap : TERM USR1",
            *_body(job),
            "",
        ]
    )


def _body(job: BatchJob) -> list[str]:
    cpus = f" --cpus-per-task={job.cpus_per_node}" if job.cpus_per_node else ""
    launch, before = "", []
    if job.nodes > 1 or job.gpus_per_node > 1:
        launch = f" --nproc-per-node {max(1, job.gpus_per_node)}"
    if job.nodes > 1:
        before = [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "port=$((20000 + SLURM_JOB_ID % 20000))",
        ]
        launch += ' --nnodes "$SLURM_NNODES" --rdzv-endpoint "$first:$port"'
    return [*before, f"srun{cpus} {shlex.join(job.command)}{launch} --name {_name(job)} --resume"]


def _name(job: BatchJob) -> str:
    """Return the name of the run for the shell; tasks of an array have names of their own."""
    name = shlex.quote(job.name) if job.name else '"slurm-$SLURM_JOB_ID"'
    is_array = any(setting.startswith("array=") for setting in job.settings)
    return f'{name}"-$SLURM_ARRAY_TASK_ID"' if is_array and job.name else name


def submit(script: str) -> str:
    """Send a script by sbatch; return what it printed.

    Raises:
        ConfigError: There is no sbatch here, or it refused the script.
    """
    try:
        done = subprocess.run(["sbatch"], input=script, capture_output=True, text=True, check=False)  # noqa: S607 - the site's
    except OSError as error:
        raise ConfigError(
            f"sbatch: {error.strerror}", hint="submit on a login node of the cluster, or print the script"
        ) from error
    if done.returncode:
        raise ConfigError(
            f"sbatch refused the script: {done.stderr.strip() or f'exit code {done.returncode}'}",
            hint="see the settings of the cluster with sinfo; add lines with --sbatch",
        )
    return done.stdout.strip()
