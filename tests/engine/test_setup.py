"""Random numbers on the device depend only on the run's seed and its position in the data."""

import torch

from mptui.engine.torch_setup import StepSeeds


def drawn(seed, epoch, sample, rank=0):
    StepSeeds(seed, torch.device("cpu"), rank).set(epoch, sample)
    return torch.rand(8).tolist()


def test_the_same_place_of_the_same_run_has_the_same_numbers():
    assert drawn(3, 2, 64) == drawn(3, 2, 64)


def test_each_epoch_each_sample_and_each_seed_has_its_own():
    moments = [(3, 2, 64), (3, 1, 64), (3, 2, 65), (4, 2, 64), (0, 0, 0), (0, 1, 0), (1, 0, 0)]
    places = [*moments, *((*moment, rank) for moment in moments for rank in (1, 2, 7))]
    assert len({tuple(drawn(*place)) for place in places}) == len(places)
