"""Checks the plan of a run in several processes (ranks); only `run` and `resume` have more than one."""

from collections.abc import Mapping, Sequence

from mptui.config.schema import TrainingConfig
from mptui.errors import ConfigError
from mptui.hardware.devices import Device
from mptui.processes.rank_place import RankPlace


def check_single_process(environ: Mapping[str, str]) -> None:
    """Check that a launcher started a single process; all ranks fail otherwise.

    Raises:
        ConfigError: torchrun or srun started more than one process.
    """
    for name, size, rank in (("torchrun", *_torchrun(environ)), ("srun", *_srun(environ))):
        if size > 1 and rank is not None:
            raise ConfigError(
                f"{name} started {size} processes (this is rank {rank}), and each would do all of the work",
                hint="start a single process; several train together with: mptui run, mptui resume",
            )


def device_of(place: RankPlace, device: Device, devices: Sequence[Device]) -> Device:
    """Return the device of a rank: of the kind of `device`, that of its number on the node.

    A launcher may let each rank see devices of its own only (srun --gpus-per-task): with fewer than ranks on
    the node, they are counted anew. Whether two ranks have the same one shows as they join.
    """
    if device.kind == "cpu":
        return device
    own = [each for each in devices if each.kind == device.kind and each.usable]
    return own[place.local_rank % len(own)]


def check_batch(ranks: int, training: TrainingConfig) -> None:
    """Check that each rank has a sample of each batch.

    Raises:
        ConfigError: There are fewer samples than ranks.
    """
    if training.batch_size < ranks:
        raise ConfigError(
            f"training.batch_size = {training.batch_size} is shared by {ranks} processes",
            hint=f"set --batch-size to {ranks} or more: it is that of all processes together",
        )


def check_sync_batch_norm(training: TrainingConfig, device: Device) -> None:
    """Check that torch can synchronize BatchNorm on this device, if that is asked for.

    Raises:
        ConfigError: It can't.
    """
    if training.sync_batch_norm and device.kind not in {"cuda", "xpu"}:
        raise ConfigError(
            f"training.sync_batch_norm: torch can't synchronize BatchNorm on {device.name} ({device.kind})",
            hint="--set training.sync_batch_norm=false, or a network without BatchNorm "
            "(unet: --set model.norm=group)",
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
