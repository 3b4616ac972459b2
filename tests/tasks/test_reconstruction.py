import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.tasks.reconstruction import KL_WEIGHT, Reconstruction
from tests.tasks.batches import loss_and_gradient

TASK = Reconstruction()


def pictures(count, seed=0):
    return TASK.made_up_batch(torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed)))


def outputs_of(batch, error, nats=0.0):
    return torch.cat([batch.images_BCHW + error, torch.full_like(batch.images_BCHW[:, :1], nats)], dim=1)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_the_shares_of_a_window_add_up_to_the_whole_batch(sizes, seed):
    whole = pictures(sum(sizes), seed)
    answers = torch.randn(sum(sizes), 4, 4, 4)
    parts = [TASK.made_up_batch(images) for images in whole.images_BCHW.split(sizes)]
    loss, gradient = loss_and_gradient(TASK, answers, parts, sizes)
    expected, expected_gradient = loss_and_gradient(TASK, answers, [whole], [sum(sizes)])
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)


def test_the_loss_is_the_error_of_pixels_and_a_little_of_the_divergence_of_latents():
    batch = pictures(3)
    loss = TASK.loss(outputs_of(batch, 0.5, nats=2e3), batch, batch.valid, batch.size)
    assert float(loss) == pytest.approx(0.25 + 2e3 * KL_WEIGHT, rel=1e-4)


@pytest.mark.parametrize(("error", "decibels"), [(0.2, 20.0), (0.02, 40.0)])
def test_the_ratio_is_that_of_the_range_of_pixels_to_the_error(error, decibels):
    metrics = TASK.metrics(torch.device("cpu"))
    assert math.isnan(metrics.compute()["psnr"])
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
