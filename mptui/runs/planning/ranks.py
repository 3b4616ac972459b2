"""Detects that a launcher started several processes of one job.

`torchrun --nproc-per-node 2 mptui run …` and `srun -n 2 mptui run …` start the same command twice. A run
uses one device, so each of the processes would train a complete copy of it.
"""

from collections.abc import Mapping

from mptui.errors import ConfigError


def check_single_process(environ: Mapping[str, str]) -> None:
    """Check that a launcher started a single process; all ranks fail otherwise.

    Raises:
        ConfigError: torchrun or srun started more than one process.
    """
    for name, size, rank in (("torchrun", *_torchrun(environ)), ("srun", *_srun(environ))):
        if size > 1 and rank is not None:
            raise ConfigError(
                f"{name} started {size} processes (this is rank {rank}), and each would train a copy "
                "of the same run",
                hint="training on several devices is not supported yet: start a single process",
            )


def _torchrun(environ: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the number of processes and the rank of this one."""
    return _number(environ.get("WORLD_SIZE")), environ.get("RANK") or environ.get("LOCAL_RANK")


def _srun(environ: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the number of tasks of the job step and the rank of this one.

    A batch script is one process with rank 0 for any number of tasks of its job (SLURM_NTASKS); only steps
    started by srun have SLURM_STEP_NUM_TASKS.
    """
    in_batch_script = environ.get("ENVIRONMENT") == "BATCH"
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or (None if in_batch_script else environ.get("SLURM_NTASKS"))
    return _number(tasks), environ.get("SLURM_PROCID")


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 1
