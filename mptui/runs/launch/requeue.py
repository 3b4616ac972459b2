"""Queues a job of SLURM again after its run was asked to stop and has saved.

SLURM ends the job's processes as it does so: nothing may be left to write. Source: the manual page of
scontrol; SLURM queues a job again that somebody cancels, too, so its state is looked at first.
"""

import subprocess
from collections.abc import Mapping

from mptui.processes.rank_place import is_of_launcher
from mptui.text import clean

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
