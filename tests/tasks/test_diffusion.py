import pytest
import torch
import torch.nn.functional as F

from mptui.data.noise_schedule import min_snr_weights
from mptui.tasks.diffusion import Diffusion
from mptui.testing import TaskContract

CPU = torch.device("cpu")
TASK = Diffusion()


def noisy(noise):
    batch = TASK.dummy_batch(torch.zeros_like(noise))
    batch.targets = noise
    return batch


class TestDiffusion(TaskContract):
    @pytest.fixture(params=[None, 5.0])
    def task(self, request):
        return Diffusion("linear", "epsilon", request.param)

    def samples(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        answers, noise = (torch.randn(count, 3, 4, 4, generator=numbers) for _ in range(2))
        batch = noisy(noise)
        batch.timesteps = torch.randint(1000, (count,), generator=numbers)
        return answers, batch


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


def test_the_loss_is_the_mean_square():
    answers, noise = torch.randn(5, 3, 4, 4), torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(TASK.loss(answers, noisy(noise), 5, 5), F.mse_loss(answers, noise))


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
    assert metrics.per_class() == {}
