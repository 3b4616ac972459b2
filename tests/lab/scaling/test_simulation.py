"""The simulation of many ranks, beside what torch does over its fake process group."""

import json
from math import inf
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.config.schema import RunConfig
from mptui.lab.measure.scaling import Bucket, Link, Segment, Simulation, replicated_step_s, sharded_step_s
from mptui.models.layers import blocks_of
from mptui.models.zoo import build, parameter_count
from tests.made.json_documents import checked

RANKS = 8
CONFIG = RunConfig.model_validate(
    {
        "model": {"name": "small_cnn"},
        "training": {"batch_size": 16, "optimizer": "adamw"},
        "data": {"image_size": 32},
    }
)
BLOCKS = RunConfig.model_validate(CONFIG.model_dump() | {"model": {"name": "unet", "width": 8, "depth": 1}})
"""A network of blocks, which are sharded each for itself."""


@pytest.fixture(scope="module")
def simulation():
    return Simulation(CONFIG, "classification", device="cpu", precision="fp32", classes=10)


class Collectives(TorchDispatchMode):
    """Records the bytes of collectives, by name: of the larger of input and output."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith("c10d"):
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            self.sizes.setdefault(func.__name__, []).append(max(t.nbytes for t in tensors))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_collectives_and_shards_are_those_of_fully_shard():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        mesh = init_device_mesh("cpu", (RANKS,))
        with FakeTensorMode(allow_non_fake_inputs=True), Collectives() as seen:
            network = build(BLOCKS.model, num_classes=10, task="segmentation", side=32)
            for block in blocks_of(network):
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)
            network(torch.zeros(2, 3, 32, 32)).sum().backward()
            held = sum(cast(DTensor, weight).to_local().nbytes for weight in network.parameters())
    finally:
        dist.destroy_process_group()
    sizes = [size for each in seen.sizes.values() for size in each]
    simulation = Simulation(BLOCKS, "segmentation", device="cpu", precision="fp32", classes=10)
    found = simulation.sharded(Link(RANKS, 1e9, 0))
    assert (found.collectives, found.collective_bytes) == (len(sizes), sum(sizes))
    buffers = sum(buffer.nbytes for buffer in network.buffers())
    assert found.weights_bytes == held + 2 * buffers  # with those that a refused step goes back to
    assert (found.gradients_bytes, found.optimizer_bytes) == (held, 2 * held)


def test_buckets_hold_each_gradient_once_in_the_order_of_the_backward_pass(simulation):
    with torch.device("meta"):
        weights = parameter_count(build(CONFIG.model, num_classes=10, task="classification", side=32))
    buckets = simulation.trace.buckets
    assert sum(bucket.size for bucket in buckets) == 4 * weights
    ready = [bucket.ready for bucket in buckets]
    assert ready == sorted(ready)
    assert simulation.trace.forward < ready[0]
    assert ready[-1] == 1
    assert sum(simulation.trace.shares) == pytest.approx(1)


def test_a_link_without_limits_costs_nothing_and_a_slow_one_is_all_that_counts(simulation):
    sent = (RANKS - 1) / RANKS
    for way, passes in ((simulation.replicated, 2), (simulation.sharded, 1)):
        free = way(Link(RANKS, inf, 0), 0.1)
        assert (free.step_s, free.efficiency, free.collective_s) == (pytest.approx(0.1), pytest.approx(1), 0)
        slow = way(Link(RANKS, 1e3, 0), 0.1)
        assert slow.collective_s == pytest.approx(passes * sent * slow.collective_bytes / 1e3)
        assert slow.step_s == pytest.approx(passes * sent * slow.collective_bytes / 1e3, rel=0.01)
    few, many = (simulation.sharded(Link(ranks, 1e9, 0)).weights_bytes for ranks in (2, 64))
    assert few > slow.weights_bytes > many


def test_a_step_waits_only_for_what_is_not_hidden():
    link = Link(2, 1.0, 0.0)  # an all-reduce of 1 byte takes 1 s
    assert link.reduce_s(1) == 1
    assert replicated_step_s(10, [Bucket(2, 0.5), Bucket(1, 1.0)], link) == 11
    assert replicated_step_s(10, [Bucket(7, 0.5), Bucket(1, 1.0)], link) == 13
    # gather 1 s, 2 s of the root while 1 s is gathered, 2 s, then backward
    segments = [Segment(0.5, 2, 0), Segment(0.5, 2, 4)]
    assert sharded_step_s(8, 0.5, segments, link) == 1 + 2 + 2 + 2 + 2
    assert Link(8, inf, 1.0).gather_s(1) == 3


SETTINGS = ["--model", "small_cnn", "--set", "data.image_size=32", "--set", "training.optimizer=adamw"]
COUNTED = ["memory", *SETTINGS, "--card", "1GiB", "--ranks", "16,4"]


def told(*words):
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.exception
    return result


def test_the_command_has_a_row_for_each_number_and_way():
    timed = [*COUNTED, "--samples-per-second", "100"]
    document = checked("memory", json.loads(told(*timed, "--json").stdout))
    assert [row["ranks"] for row in document["ranks"]] == [4, 16]
    assert all(0 < row["sharded"]["efficiency"] <= 1 for row in document["ranks"])
    text = told(*timed).stdout
    assert "25 GB/s between them, 100 images/s on one:" in text
    assert [line.split()[:2] for line in text.splitlines()[-4:]] == [
        [size, way] for size in ("4", "16") for way in ("DDP", "FSDP2")
    ]


def test_without_the_speed_of_a_card_memory_and_communication_are_told():
    text = told(*COUNTED).stdout
    assert "communication" in text
    assert "images/s" not in text
    row = json.loads(told(*COUNTED, "--json", "--bandwidth", "0.025").stdout)["ranks"][0]["sharded"]
    assert row["samples_per_second"] is None
    assert row["collective_s"] > row["collective_bytes"] * 3 / 4 / 25e6  # and the hops


def test_settings_that_exclude_shards_leave_them_out_and_say_why():
    unsharded = [*COUNTED, "--set", "memory.micro_batch=auto"]
    assert json.loads(told(*unsharded, "--json").stdout)["ranks"][0]["sharded"] is None
    last, why = told(*unsharded).stdout.splitlines()[-2:]
    assert last.split()[:2] == ["16", "DDP"]
    assert why.startswith('no FSDP2: memory.shard with memory.micro_batch = "auto"')


def test_the_old_word_does_the_same_and_says_the_new_one():
    result = told("simulate", *COUNTED[1:], "--json")
    assert result.stderr.startswith("mptui simulate is now: mptui memory --ranks")
    assert result.stdout == told(*COUNTED, "--json").stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_are_gpus_where_there_is_none():
    words = [word for word in COUNTED if word not in {"--card", "1GiB"}]
    result = told(*words, "--json")
    assert "no GPU here: counted for H100 80 GB;" in result.stderr
    assert json.loads(result.stdout)["device_name"] == "H100 80 GB"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--ranks", "8,one"), "not numbers from 2 to 16,384"),
        (("--latency", "0"), "--latency without --ranks"),
    ],
)
def test_numbers_that_are_none_and_flags_without_them_are_refused(words, fault):
    result = CliRunner().invoke(app, ["memory", "--model", "resnet18", *words])
    assert fault in str(result.exception)
