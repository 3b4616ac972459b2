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
    return Simulation(CONFIG, "classification", device="cpu", precision="fp32", classes=10, step_s=0.1)


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
    simulation = Simulation(BLOCKS, "segmentation", device="cpu", precision="fp32", classes=10, step_s=0.1)
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
        assert way(Link(RANKS, inf, 0)).step_s == pytest.approx(0.1)
        slow = way(Link(RANKS, 1e3, 0))
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


def test_the_command_prints_a_row_for_each_number():
    settings = ["--model", "small_cnn", "--set", "data.image_size=32", "--device", "cpu"]
    asked = ["simulate", *settings, "--ranks", "16,4", "--samples-per-second", "100"]
    document = checked("simulate", json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout))
    assert [row["ranks"] for row in document["ranks"]] == [4, 16]
    assert all(0 < row["sharded"]["efficiency"] <= 1 for row in document["ranks"])
    text = CliRunner().invoke(app, asked).stdout
    assert "100 images/s on one, 25 GB/s between them" in text
    assert len(text.splitlines()) == 4


def test_numbers_that_are_none_are_refused():
    result = CliRunner().invoke(app, ["simulate", "--model", "resnet18", "--ranks", "8,one"])
    assert "not numbers from 2 to 16,384" in str(result.exception)
