"""Batch scripts of SLURM for a run, their submission, and requeueing."""

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptui.errors import ConfigError
from mptui.processes.rank_place import is_of_launcher
from mptui.text import clean

# Batch scripts of SLURM for a run, and their submission
# ------------------------------------------------------
# Source: the manual pages of sbatch and srun.

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


# Queues a job of SLURM again after its run was asked to stop and has saved
# -------------------------------------------------------------------------
# SLURM ends the job's processes as it does so: nothing may be left to write. Source: the manual page of
# scontrol; SLURM queues a job again that somebody cancels, too, so its state is looked at first.

_LIMIT_S = 60.0
"""Time limit in seconds for an answer of SLURM's controller."""


def requeue(environ: Mapping[str, str], *, resumes: bool) -> str | None:
    """Queue the job of this process again.

    Args:
        environ: The environment.
        resumes: Whether the command of the job goes on with this run.

    Returns:
        What happened, in words; None if there is no job, or another process of it does this.
    """
    job = _job(environ)
    if job is None or not _is_first(environ):
        return None
    if not resumes:
        return f"job {job} is not queued again: it would start from the beginning without --name and --resume"
    try:
        if "JobState=CANCELLED" in _scontrol("show", "job", job):
            return f"job {job} is not queued again: it was cancelled"
        _scontrol("requeue", job)
    except (OSError, subprocess.SubprocessError) as error:
        return f"job {job} can't be queued again: {_words(error)}"
    return f"job {job} is queued again"


def _job(environ: Mapping[str, str]) -> str | None:
    """Return the job as scontrol names it: that of a task of an array, not of the whole array."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def _is_first(environ: Mapping[str, str]) -> bool:
    """Whether this process acts for the job: the first task, or the first rank of a torchrun."""
    if is_of_launcher(environ):
        return False  # its launcher does, which a signal at its start doesn't end
    return environ.get("RANK", "0") == "0" and environ.get("SLURM_PROCID", "0") == "0"


def _scontrol(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - no shell
        ["scontrol", *arguments],  # noqa: S607 - the site's
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=True,
    )
    return done.stdout


def _words(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return clean(error.stderr.strip() or f"scontrol: exit code {error.returncode}")
    return f"scontrol: {error.strerror}" if isinstance(error, OSError) else clean(str(error))
