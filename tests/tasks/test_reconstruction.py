import math

import pytest
import torch

from mptui.tasks.diffusion import KL_WEIGHT, Reconstruction
from mptui.testing import TaskContract

TASK = Reconstruction()


def pictures(count, seed=0):
    return TASK.dummy_batch(torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed)))


def outputs_of(batch, error, nats=0.0):
    return torch.cat([batch.images_BCHW + error, torch.full_like(batch.images_BCHW[:, :1], nats)], dim=1)


class TestReconstruction(TaskContract):
    @pytest.fixture
    def task(self):
        return TASK

    def samples(self, count, seed):
        answers = torch.randn(count, 4, 4, 4, generator=torch.Generator().manual_seed(seed + 100))
        return answers, pictures(count, seed)


def test_the_loss_is_the_error_of_pixels_and_a_little_of_the_divergence_of_latents():
    batch = pictures(3)
    loss = TASK.loss(outputs_of(batch, 0.5, nats=2e3), batch, batch.valid, batch.size)
    assert float(loss) == pytest.approx(0.25 + 2e3 * KL_WEIGHT, rel=1e-4)


@pytest.mark.parametrize(("error", "decibels"), [(0.2, 20.0), (0.02, 40.0)])
def test_the_ratio_is_that_of_the_range_of_pixels_to_the_error(error, decibels):
    metrics = TASK.metrics(torch.device("cpu"))
    for count in (2, 5):
        batch = pictures(count)
        metrics.update(outputs_of(batch, error), batch)
    assert metrics.compute()["psnr"] == pytest.approx(decibels, abs=1e-3)


def test_a_step_that_is_skipped_leaves_the_ratio_of_the_others():
    training, validation = (TASK.metrics(torch.device("cpu"), training=is_on) for is_on in (True, False))
    for metrics in (training, validation):
        for error in (0.2, math.nan, math.inf):
            batch = pictures(2)
            metrics.update(outputs_of(batch, error), batch)
    assert training.compute()["psnr"] == pytest.approx(20, abs=1e-3)
    assert math.isnan(validation.compute()["psnr"])
