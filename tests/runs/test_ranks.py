"""Several processes started by a launcher, for commands that are one process: each refuses."""

import pytest

from mptui.errors import ConfigError
from mptui.processes.rank_place import RankPlace
from mptui.runs.planning.plan import Request, plan_run
from tests.program import run_to_end

SEVERAL = {
    "torchrun": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
    "torchrun, rank 1": {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    "srun": {"SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
    "srun, rank 1": {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"},
    "srun in a batch script": {
        "ENVIRONMENT": "BATCH",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "1",
    },
}
ONE = {
    "torchrun": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    "srun": {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    "batch script": {"ENVIRONMENT": "BATCH", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
    "one task of a larger job": {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    "allocation": {"SLURM_NTASKS": "4"},
    "no rank": {"WORLD_SIZE": "2"},
    "no number": {"WORLD_SIZE": "two", "RANK": "0"},
}


@pytest.mark.parametrize("environ", SEVERAL.values(), ids=SEVERAL)
def test_each_of_several_processes_of_a_launcher_refuses_to_train_a_copy(environ):
    with pytest.raises(ConfigError, match=r"started 2 processes \(this is rank [01]\)"):
        plan_run(Request(environ=environ))


@pytest.mark.slow
def test_a_rank_that_does_not_know_where_to_meet_the_others_says_so_and_leaves_no_run(tmp_path):
    arguments = ("--model", "resnet18", "--data", "shapes", "--device", "cpu", "--runs-dir", tmp_path)
    ended = run_to_end("run", *arguments, environ=SEVERAL["torchrun, rank 1"])
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("mptui: this is rank 1 of 2, but MASTER_ADDR")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environ", ONE.values(), ids=ONE)
def test_one_process_of_a_launcher_trains(environ):
    flags = {"hardware.device": ("--device", "cpu")}
    assert plan_run(Request(None, flags, (), environ)).device.kind == "cpu"


def test_a_plan_for_several_processes_shares_the_machine_and_refuses_what_they_can_not_do():
    place = RankPlace(rank=1, local_rank=1, world_size=2, local_world_size=2)

    def plan(**settings):
        flags = {"hardware.device": "cpu", **settings}
        return plan_run(Request(None, {key: ("--set", value) for key, value in flags.items()}), place=place)

    assert plan().device.kind == "cpu"
    with pytest.raises(ConfigError, match="batch_size = 1 is shared by 2 processes"):
        plan(**{"training.batch_size": 1})
    with pytest.raises(ConfigError, match="can't synchronize BatchNorm"):
        plan(**{"training.sync_batch_norm": True})
