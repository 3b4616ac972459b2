"""Random numbers on the device depend only on the run's seed and its position in the data."""

import os

import torch

from mptui.config.schema import RunConfig
from mptui.engine.progress import StepSeeds, prepare_torch


def drawn(seed, epoch, sample, rank=0):
    StepSeeds(seed, torch.device("cpu"), rank).set(epoch, sample)
    return torch.rand(8).tolist()


def test_the_same_place_of_the_same_run_has_the_same_numbers():
    assert drawn(3, 2, 64) == drawn(3, 2, 64)


def test_each_epoch_each_sample_and_each_seed_has_its_own():
    moments = [(3, 2, 64), (3, 1, 64), (3, 2, 65), (4, 2, 64), (0, 0, 0), (0, 1, 0), (1, 0, 0)]
    places = [*moments, *((*moment, rank) for moment in moments for rank in (1, 2, 7))]
    assert len({tuple(drawn(*place)) for place in places}) == len(places)


def test_after_any_run_cublas_can_be_deterministic_in_the_next_one_of_the_process(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    prepare_torch(RunConfig(), torch.device("cpu"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
