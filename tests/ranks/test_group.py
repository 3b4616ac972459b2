import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from mptui.engine.evaluate import summed_state
from mptui.engine.ranks import group as ranks_group
from mptui.engine.ranks.group import Ranks, join
from mptui.errors import RankError
from mptui.processes.rank_place import RankPlace, first_host, rank_place
from mptui.runs.session.member import leave
from mptui.tasks.own_loss import OwnMetrics
from tests.gpus import DEVICES
from tests.ranks.groups import environs, in_group, own_device, started
from tests.tasks.batches import labelled

CPU = torch.device("cpu")

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
SRUN = {
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_NODELIST": "gpu[003-004,11],login1",
    "SLURM_JOB_ID": "123456",
}


def test_a_process_without_a_launcher_or_without_others_is_alone():
    batch_script = {"ENVIRONMENT": "BATCH", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    for environ in (
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        batch_script,
    ):
        assert rank_place(dict(environ)) is None
        assert "MASTER_ADDR" not in environ


def test_the_place_in_a_group_of_torchrun():
    assert rank_place(dict(TORCHRUN)) == RankPlace(3, 1, 4, 2, node=1, nodes=2)
    # torchrun started by srun, once a node: its own numbers count
    assert rank_place({**SRUN, **TORCHRUN}) == RankPlace(3, 1, 4, 2, node=1, nodes=2)


def test_the_place_in_a_job_step_of_srun_and_where_its_ranks_meet():
    environ = dict(SRUN)
    assert rank_place(environ) == RankPlace(4, 0, 5, 1, node=2, nodes=3)
    assert environ["MASTER_ADDR"] == "gpu003"
    other = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert rank_place(other) == RankPlace(0, 0, 5, 2, nodes=3)
    assert other["MASTER_PORT"] == environ["MASTER_PORT"]
    bound = rank_place({**SRUN, "SLURM_CPUS_PER_TASK": "6"})
    assert bound is not None
    assert bound.cpus == 6
    own = {**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    rank_place(own)
    assert (own["MASTER_ADDR"], own["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a1", "a1"), ("a1,a2", "a1"), ("n[7-9]", "n7"), ("n[01,05-06]x,b", "n01x"), ("r1n[2]-ib,c", "r1n2-ib")],
)
def test_the_first_host_of_a_list_of_slurm(nodes, host):
    assert first_host(nodes) == host


def test_alone_nothing_changes():
    ranks, values = Ranks.alone(), torch.tensor([1.0, 2.0])
    assert ranks.is_first
    assert ranks.sum_(values) is values
    assert (ranks.broadcast("a"), ranks.gather("a")) == ("a", ["a"])
    ranks.close()


def share(ranks):
    values = torch.tensor([ranks.rank, 10.0 * ranks.rank])
    return [
        ranks.sum_(values.clone()).tolist(),
        ranks.broadcast({"rank": ranks.rank}),
        ranks.gather(ranks.rank),
        ranks.is_first,
    ]


@pytest.mark.slow
def test_two_processes_are_a_group():
    same = [[1, 10], {"rank": 0}, [0, 1]]
    assert in_group(2, share) == [[*same, True], [*same, False]]


def right_answers(ranks):
    """Measure by metrics of a person's own, of which only rank 0 has samples."""

    def metrics():
        return OwnMetrics(
            "mine", lambda outputs, targets: {"right": outputs == targets}, "right", CPU, finite_only=False
        )

    own, whole = metrics(), metrics()
    if ranks.is_first:
        own.update(torch.tensor([0.0, 1.0, 1.0, 1.0]), labelled([0, 1, 1, 0]))
    whole.load_state_dict(summed_state(own, ranks, CPU))
    return [whole.compute()["right"], float(ranks.sum_(torch.ones(())))]


@pytest.mark.slow
def test_a_rank_without_samples_adds_none_to_metrics_of_ones_own():
    assert in_group(2, right_answers) == [[0.75, 2.0]] * 2


@pytest.mark.parametrize("kind", DEVICES)
def test_no_wait_that_is_meant_ends_a_group(monkeypatch, kind):
    """A full disk holds rank 0 for hours, its host and so its device; hosts give up first, in words."""
    for name, value in environs(1)[0].items():
        monkeypatch.setenv(name, value)
    ranks = join(RankPlace(0, 0, 1, 1), torch.device(kind, 0))
    both = (kind, ranks.device_group), ("cpu", ranks.host_group)
    limits = [group._get_backend(torch.device(on)).options._timeout for on, group in both if group]
    ranks.close()
    device, host = limits
    assert device > host >= timedelta(hours=24)


def leave_in_an_operation(ranks, folder):
    """Leave rank 0 by an error, while a sum is under way in which rank 1 never takes part."""
    left, ranks_group.ABORT_S = Path(folder) / "left", 0.5
    if ranks.is_first:
        values = torch.ones(4, device=own_device())
        torch.distributed.all_reduce(values, group=ranks.device_group, async_op=True)
        leave(ranks, RankError("rank 1 can't be reached", hint=""))
        left.touch()
    until = time.monotonic() + 10
    while not left.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return left.exists()


def test_a_rank_that_fails_does_not_wait_for_what_can_not_end(tmp_path):
    assert in_group(2, leave_in_an_operation, str(tmp_path)) == [True, True]


@pytest.mark.slow
def test_ranks_that_have_the_same_gpu_are_refused_before_they_join():
    each = [{**environ, "OF_DEVICE": "GPU-a"} for environ in environs(2)]
    ranks = started(share, environs=each)
    for rank, (out, err) in zip(ranks, [rank.communicate() for rank in ranks], strict=True):
        assert (rank.returncode, out) == (1, "")
        assert "ConfigError: ranks 0, 1 have the same GPU (GPU-a)" in err
