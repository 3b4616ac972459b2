import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.data.transforms.noise_schedule import min_snr_weights
from mptui.tasks.diffusion import Diffusion, ExplainedVariance
from tests.tasks.batches import loss_and_gradient

CPU = torch.device("cpu")
TASK = Diffusion()


def noisy(noise):
    batch = TASK.made_up_batch(torch.zeros_like(noise))
    batch.targets = noise
    return batch


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 2**31))
def test_the_shares_of_a_window_add_up_to_the_whole_batch(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    answers, noise = (torch.randn(sum(sizes), 3, 4, 4, generator=generator) for _ in range(2))
    parts = [noisy(part) for part in noise.split(sizes)]
    loss, gradient = loss_and_gradient(TASK, answers, parts, sizes)
    whole, whole_gradient = loss_and_gradient(TASK, answers, [noisy(noise)], [sum(sizes)])
    torch.testing.assert_close(loss, whole, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(whole, F.mse_loss(answers, noise), rtol=1e-5, atol=0)


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_min_snr_weighs_each_sample_by_its_timestep(prediction):
    task = Diffusion("linear", prediction, 5.0)
    answers, targets = torch.randn(6, 3, 4, 4), torch.randn(6, 3, 4, 4)
    timesteps = torch.tensor([0, 20, 100, 300, 700, 999])
    weights = torch.from_numpy(min_snr_weights("linear", prediction, 5.0)).float()[timesteps]
    expected = ((answers - targets).square().mean((1, 2, 3)) * weights).mean()

    def cut(rows):
        batch = noisy(targets[rows])
        batch.timesteps = timesteps[rows]
        return batch

    whole = task.loss(answers.half(), cut(slice(6)), 6, 6)
    torch.testing.assert_close(whole, expected, rtol=1e-3, atol=0)
    parts = [task.loss(answers[rows], cut(rows), 6, 6) for rows in (slice(2), slice(2, 6))]
    torch.testing.assert_close(parts[0] + parts[1], expected, rtol=1e-5, atol=0)
    assert task.chance == pytest.approx(min_snr_weights("linear", prediction, 5.0).mean())


def test_padding_counts_for_nothing():
    noise, answers = torch.randn(5, 3, 4, 4), torch.randn(5, 3, 4, 4)
    padded = noisy(noise)
    padded.size = 3
    answers[3:] = math.nan
    plain, metrics = ExplainedVariance(CPU), ExplainedVariance(CPU)
    plain.update(answers[:3], noisy(noise[:3]))
    metrics.update(answers, padded)
    assert torch.equal(TASK.loss(answers, padded, 3, 3), F.mse_loss(answers[:3], noise[:3]))
    assert metrics.compute() == plain.compute()


def test_squares_are_summed_in_float32():
    answers = torch.full((4, 3, 64, 64), 300.0, dtype=torch.float16)  # its square overflows float16
    loss = TASK.loss(answers, noisy(torch.zeros(4, 3, 64, 64)), 4, 4)
    assert loss == 90_000.0


def test_what_is_explained_is_all_none_and_less_than_none():
    noise = torch.randn(6, 3, 4, 4)
    for answers, expected in [
        (noise, 1.0),
        (torch.zeros_like(noise), 0.0),
        (-noise, -3.0),
        (noise / 2, 0.75),
    ]:
        metrics = TASK.metrics(CPU)
        for rows in (slice(0, 4), slice(4, 6)):
            metrics.update(answers[rows], noisy(noise[rows]))
        assert metrics.compute()["r2"] == pytest.approx(expected, abs=1e-6)
    assert TASK.primary in metrics.compute()
    other = TASK.metrics(CPU)
    other.load_state_dict(metrics.state_dict())
    assert other.compute() == metrics.compute()
    other.reset()
    assert math.isnan(other.compute()["r2"])
    assert other.per_class() == {}
