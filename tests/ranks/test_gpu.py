"""Ranks on two GPUs: NCCL, DDP, FSDP2, synchronized BatchNorm, and a rank that is lost."""

import os
import signal
import time

import pytest
import torch

from mptui.engine.ranks import beats
from mptui.engine.ranks.group import Ranks, join
from mptui.errors import RankError
from mptui.processes.rank_place import RankPlace
from tests.ranks.groups import KIND, environs, in_group, own_device, started
from tests.ranks.test_group import leave_in_an_operation
from tests.ranks.test_sync_batch_norm import ACCUMULATED, SPLIT, train_synchronized
from tests.ranks.training import train, train_with_a_fault

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.gpu(2)

CUDA = {KIND: "cuda"}
OPTIONS = {"training": {"epochs": 2, "batch_size": 8, "lr": 0.05}, "train": 26, "val": 5}
FORMS = {
    "ddp": OPTIONS,
    "ddp, compiled": {**OPTIONS, "force_compile": True, "speed": {"compile": "default"}},
    "fsdp": {**OPTIONS, "memory": {"shard": True}, "blocks": 2},
}


def assert_same_steps(both, alone):
    """Weights and losses are equal up to the rounding of convolutions in TF32."""
    assert both[0] == both[1]
    for what in ("losses", "val_losses", "weights"):
        assert both[0][what] == pytest.approx(alone[what], rel=1e-2)


@two_gpus
@pytest.mark.parametrize("form", FORMS)
def test_two_gpus_take_the_steps_of_one(form, tmp_path):
    options = FORMS[form]
    (alone,) = in_group(1, train, str(tmp_path / "1"), options, **CUDA)
    assert_same_steps(in_group(2, train, str(tmp_path / "2"), options, **CUDA), alone)


@two_gpus
def test_synchronized_batch_norm_takes_the_steps_of_one_gpu_and_as_many_passes_on_each(tmp_path):
    (alone,) = in_group(1, train_synchronized, str(tmp_path / "1"), ACCUMULATED, **CUDA)
    assert_same_steps(in_group(2, train_synchronized, str(tmp_path / "2"), ACCUMULATED, **CUDA), alone)
    first, last = in_group(2, train_synchronized, str(tmp_path / "3"), SPLIT, **CUDA)
    assert first == last
    assert first["step"] == 10


class _Several(Ranks):
    """A group of one rank that is treated as several: DDP, its sums and the meetings are those of more."""

    is_alone = property(lambda ranks: False)


def train_with_graphs(ranks, folder, mode):
    """Train on several ranks, or as if there were several, with CUDA graphs, which no run uses there."""
    patch = pytest.MonkeyPatch()
    patch.setattr("mptui.engine.job._has_graphs", lambda job: True)
    if ranks.is_alone:
        joined = join(RankPlace(0, 0, 1, 1), own_device())
        ranks = _Several(0, 1, joined.device_group, joined.host_group)
    found = train(ranks, folder, {**OPTIONS, "force_compile": mode != "off", "speed": {"compile": mode}})
    patch.undo()
    ranks.close()
    return found


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=two_gpus)])
def test_graphs_beside_the_sums_of_gradients_train_as_eager_code_does(world_size, tmp_path):
    """If this passes on two GPUs, several ranks may use CUDA graphs."""
    environ = environs(1)[0] if world_size == 1 else {}
    eager, graphs = (
        in_group(world_size, train_with_graphs, str(tmp_path / mode), mode, **environ, **CUDA)
        for mode in ("off", "reduce-overhead")
    )
    assert graphs[0]["others"] == []
    assert_same_steps((graphs[0], graphs[-1]), eager[0])


@two_gpus
def test_if_one_gpu_is_full_all_split_and_repeat_the_step(tmp_path):
    found = in_group(2, train_with_a_fault, str(tmp_path), "no memory backward", 2, OPTIONS, **CUDA)
    assert found[0] == found[1]
    assert found[0]["error"] is None
    assert any("micro-batch 4 → 2" in action for action in found[0]["others"]), found


def _lose(ranks, how):
    """Rank 1 is lost while the device of rank 0 waits for it."""
    beats.BEAT_S, beats.SILENT_S, beats.LOST_S = 0.05, 1.0, 2.0
    ranks.beats.close()
    ranks.beat()
    total = torch.ones(1, device=own_device())
    ranks.sum_(total)
    torch.cuda.synchronize()
    ranks.broadcast(0)
    time.sleep(0.5)
    if ranks.rank == 1:
        os.kill(os.getpid(), how)
    return ranks.sum_(total).item()


@two_gpus
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_a_lost_rank_ends_one_whose_device_waits_for_it(how):
    """NCCL sees the end of a process on some machines, and then aborts before the beats do."""
    first, last = started(_lose, how, environs=environs(2, **CUDA))
    try:
        _, err = first.communicate()
    finally:
        last.kill()
    assert first.returncode in {RankError.exit_code, -signal.SIGABRT}, err


@two_gpus
def test_a_rank_that_fails_does_not_wait_for_what_can_not_end(tmp_path):
    assert in_group(2, leave_in_an_operation, str(tmp_path), **CUDA) == [True, True]
