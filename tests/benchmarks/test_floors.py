"""The physical bound of a training step, computed from the network alone."""

import pytest
import torch

from benchmarks.floors import Layer, Work, ceilings, work_of
from benchmarks.subjects import ON_GPU


def work(case):
    with torch.device("meta"):
        network = case.network()
    return work_of(network, case.side, case.batch)


def test_the_operations_are_those_of_the_tables():
    assert work(ON_GPU["resnet50"]).operations / 1e9 == pytest.approx(24.3, abs=0.05)
    assert work(ON_GPU["unet"]).operations / 1e9 == pytest.approx(1155, abs=2)


def test_a_layer_counts_by_hand():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1)
    )
    found = work_of(network, side=8, batch=1)
    first, second = 64 * 4 * 27, 64 * 2 * 4
    assert found.operations == 2 * (2 * first + 3 * second)
    moved_by_first, moved_by_second = 64 * 3 + 64 * 4 + 108, 64 * 4 + 64 * 2 + 8
    assert found.values == 2 * moved_by_first + 3 * moved_by_second + 8 * 64 * 4


def test_a_layer_takes_the_longer_of_its_operations_and_its_bytes():
    computing, moving = Layer("computes", 500, 1), Layer("moves", 0, 100)
    rate = Work((computing, moving)).images_per_second(operations_s=1000, bytes_s=100, value_bytes=2)
    assert 1 / rate == pytest.approx(1.0 + 2.0)


def test_the_ceilings_are_measured(monkeypatch):
    monkeypatch.setattr("benchmarks.floors.PRODUCT_SIDE", {"cpu": 64})
    monkeypatch.setattr("benchmarks.floors.COPY_BYTES", {"cpu": 1 << 16})
    assert all(value > 0 for value in ceilings(torch.device("cpu"), torch.float32).values())
