"""Several processes started by a launcher, for commands that are one process: each refuses."""

from dataclasses import replace

import pytest

from mptui.config.change import switched
from mptui.config.resolve import to_toml
from mptui.engine.optim.schedule import scaled_lr
from mptui.errors import ConfigError
from mptui.hardware.devices import Machine
from mptui.processes.rank_place import RankPlace
from mptui.runs.planning.plan import Request, plan_run, rate_notes, resolve_request, scaled_to
from tests.hardware.machines import HOST, card, cpu
from tests.made.runs import plan_of
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


def test_a_single_process_says_that_it_shares_no_weights():
    flags = {"hardware.device": ("--device", "cpu"), "memory.shard": ("--set", True)}
    plan = plan_run(Request(None, flags))
    assert plan.config.memory.shard
    assert any("memory.shard is not used" in note for note in plan.notes)


def test_a_plan_for_several_processes_shares_the_machine_and_refuses_what_they_can_not_do():
    place = RankPlace(rank=1, local_rank=1, world_size=2, local_world_size=2)

    def plan(**settings):
        return plan_of({"hardware.device": "cpu", **settings}, None, place=place)

    assert plan().device.kind == "cpu"
    with pytest.raises(ConfigError, match="batch_size = 1 is shared by 2 processes"):
        plan(**{"training.batch_size": 1})
    with pytest.raises(ConfigError, match="can't synchronize BatchNorm"):
        plan(**{"training.sync_batch_norm": True})


@pytest.mark.parametrize(
    ("gpus", "local_rank", "index"),
    [(1, 0, 0), (1, 1, 0), (1, 3, 0), (2, 3, 1), (4, 3, 3), (8, 3, 3)],
    ids=lambda value: str(value),
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(gpus, local_rank, index):
    old = replace(card("Tesla K80", (3, 7)), usable=False, notes=["no code"])
    cards = [replace(card("NVIDIA H100", (9, 0)), index=at, uuid=f"GPU-{at}") for at in range(gpus)]
    machine = Machine(host=HOST, driver=None, cuda=None, torch=None, devices=[old, *cards, cpu()], notes=[])
    place = RankPlace(rank=4 + local_rank, local_rank=local_rank, world_size=8, local_world_size=4)
    assert plan_run(Request(), machine, place).device.uuid == f"GPU-{index}"


def test_the_processors_of_a_rank_are_its_own_or_its_share_of_the_node():
    machine = Machine(
        host=replace(HOST, cpus_usable=12), driver=None, cuda=None, torch=None, devices=[cpu()], notes=[]
    )
    place = RankPlace(rank=1, local_rank=1, world_size=4, local_world_size=4)
    for cpus, workers in ((None, 2), (12, 11), (6, 5), (24, 11)):
        assert plan_run(Request(), machine, replace(place, cpus=cpus)).workers == workers


def scaled(processes, *sets, profile=None, begun=None):
    request = scaled_to(Request(profile, {}, sets), processes, begun)
    return request, resolve_request(request).config.training


def test_scale_batch_multiplies_batch_and_rate_and_says_so():
    request, training = scaled(4, "training.batch_size=8", "training.accumulate=2", "training.lr=0.1")
    assert training.batch_size == 32
    assert scaled_lr(training) == pytest.approx(0.4)
    assert request.notes[0] == "Batch size: 8 x 4 processes = 32 (--scale-batch)"
    assert "Warm-up: none" in request.notes[1]
    (note,) = rate_notes(training)
    assert note == "Effective learning rate: 0.4 for a batch of 64 (0.1 for 16, scaled linear)"
    _, fast = scaled(1, profile="fast")
    request, four = scaled(4, profile="fast")
    assert four.batch_size == 4 * fast.batch_size
    assert scaled_lr(four) == pytest.approx(2 * scaled_lr(fast))  # by the root
    assert len(request.notes) == 1, "it warms up"
    for scaling, rate in (("sqrt", 0.2), ("off", 0.1)):
        _, training = scaled(4, "training.lr=0.1", f"training.lr_scaling={scaling}")
        assert scaled_lr(training) == pytest.approx(rate)


def test_a_scaled_batch_stays_through_a_resume_on_other_processes_and_a_switch(tmp_path):
    first, training = scaled(4, "training.batch_size=8", "training.lr=0.1")
    begun = tmp_path / "run.toml"
    begun.write_text(to_toml(resolve_request(first).config))
    request, again = scaled(2, "training.batch_size=8", "training.lr=0.1", begun=begun)
    assert again == training
    assert request.notes[0] == "Batch size: 32, as when the run began (--scale-batch)"
    now = resolve_request(first).config
    preset = resolve_request(replace(first, profile="stable")).config
    switched_to = switched(now, preset).config.training
    assert switched_to.batch_size == 32
    assert scaled_lr(switched_to) == pytest.approx(0.4)
    # what a person sets in the live screen is the batch of all
    request = replace(first, sets=(*first.sets, "training.batch_size=64"))
    assert resolve_request(request).config.training.batch_size == 64
