"""Sampling, with networks that know the exact answer."""

import contextlib

import numpy as np
import pytest
import torch

from mptui.data.noise import Noising
from mptui.data.noise_schedule import alphas_cumprod
from mptui.data.transforms import Normalization
from mptui.models.latents import FrozenVae
from mptui.models.vae_layout import VaeLayout
from mptui.tasks.image_sampler import ImageSampler, sampling_timesteps

CPU = torch.device("cpu")
SIDE = 6
HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def sampler(expected, **settings):
    """Return a sampler whose network knows the mean of the clean images, given (noisy images, alpha bar)."""
    noising = settings.setdefault("noising", Noising())
    alphas = torch.from_numpy(alphas_cumprod(noising.schedule))

    def network(images, timesteps):
        assert images.dtype == torch.float32
        alpha_bar = alphas[timesteps].view(-1, 1, 1, 1)
        noisy = images.double()
        clean = expected(noisy, alpha_bar)
        noise = (noisy - alpha_bar.sqrt() * clean) / (1 - alpha_bar).sqrt()
        if noising.prediction == "epsilon":
            return noise
        return alpha_bar.sqrt() * noise - (1 - alpha_bar).sqrt() * clean

    chosen = {
        "network": network,
        "forward_context": contextlib.nullcontext,
        "normalization": HALF,
        "side": SIDE,
        "device": CPU,
        "channels_last": True,
        "method": "ddim",
        "steps": 50,
        "seed": 3,
    }
    return ImageSampler(**{**chosen, **settings})


def gaussian(variance):
    """Return the mean of clean images that are normal with this variance (Efron 2011, Tweedie's formula)."""
    return lambda noisy, alpha_bar: (
        alpha_bar.sqrt() * variance / (alpha_bar * variance + 1 - alpha_bar) * noisy
    )


METHODS = pytest.mark.parametrize("method", ["ddim", "ancestral"])


@METHODS
@pytest.mark.parametrize("noising", [Noising("linear", "epsilon"), Noising("cosine", "v")])
@pytest.mark.parametrize("steps", [1, 7, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_network_that_knows_the_image_gives_this_image(method, noising, steps):
    image = torch.arange(3 * SIDE * SIDE).view(1, 3, SIDE, SIDE)
    normalization = Normalization((0.5, 0.2, 0.4), (0.5, 0.3, 0.1))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (normalization.mean, normalization.std))
    made = sampler(
        lambda noisy, alpha_bar: ((image / 255 - mean) / std).double().expand_as(noisy),
        method=method,
        noising=noising,
        steps=steps,
        normalization=normalization,
    )(np.arange(2))
    assert made.dtype == torch.uint8
    assert torch.equal(made, image.permute(0, 2, 3, 1).expand(2, -1, -1, -1).to(torch.uint8))


@pytest.mark.parametrize(
    ("method", "prediction", "steps"),
    [
        ("ddim", "v", 400),
        ("ancestral", "epsilon", 400),
        *(
            pytest.param(method, prediction, 1000, marks=pytest.mark.slow)
            for method in ("ddim", "ancestral")
            for prediction in ("epsilon", "v")
        ),
    ],
)
def test_images_have_the_distribution_of_the_data(method, prediction, steps):
    made = sampler(gaussian(0.04), method=method, noising=Noising("linear", prediction), steps=steps)
    pixels = made(np.arange(60)).double() / 127.5 - 1
    assert float(pixels.mean()) == pytest.approx(0, abs=0.015)
    assert float(pixels.std()) == pytest.approx(0.2, rel=0.05)


@METHODS
def test_an_image_depends_on_the_seed_and_its_index_alone(method):
    draw = sampler(gaussian(0.1), method=method, steps=5)
    whole = draw(np.arange(8))
    assert torch.equal(draw(np.arange(8)), whole)
    assert torch.equal(draw(np.array([5, 2])), whole[[5, 2]])
    planes = sampler(gaussian(0.1), method=method, steps=5, channels_last=False)
    assert torch.equal(planes(np.arange(8)), whole)
    other = sampler(gaussian(0.1), method=method, steps=5, seed=4)(np.arange(8))
    assert not any(torch.equal(one, another) for one, another in zip(other, whole, strict=True))


def test_guidance_is_the_difference_that_the_class_makes():
    mean_of = torch.tensor([-0.5, 0.2, 0.0]).double()  # of two classes, and of any
    seen = []

    def network(images, timesteps, labels):
        seen.append(len(images))
        alpha_bar = torch.from_numpy(alphas_cumprod())[timesteps].view(-1, 1, 1, 1)
        clean = mean_of[labels].view(-1, 1, 1, 1)
        return (images.double() - alpha_bar.sqrt() * clean) / (1 - alpha_bar).sqrt()

    def pixels(guidance):
        draw = sampler(
            None, network=network, guidance=guidance, noising=Noising("cosine", "epsilon", null_label=2)
        )
        return draw(np.arange(3), np.array([0, 1, 0]))[:, 0, 0, 0] / 127.5 - 1

    for guidance, expected in ((1.0, [-0.5, 0.2, -0.5]), (1.5, [-0.75, 0.3, -0.75]), (0.0, [0.0, 0.0, 0.0])):
        torch.testing.assert_close(pixels(guidance), torch.tensor(expected), atol=0.01, rtol=0)
    assert set(seen[:50]) == {3}
    assert set(seen[50:]) == {6}


def test_sampling_begins_where_training_ends_and_is_even():
    assert sampling_timesteps(4) == [999, 749, 499, 249]
    assert sampling_timesteps(1000) == list(range(999, -1, -1))
    assert sampling_timesteps(1) == [999]


class Quartered:
    """A VAE whose images are a quarter of their latents, at the same resolution."""

    def encode(self, images_BCHW):
        raise NotImplementedError

    def decode(self, latents_BCHW):
        return latents_BCHW[:, :3] / 4


@METHODS
def test_latents_beyond_the_range_of_pixels_are_kept_and_decoded(method):
    vae = FrozenVae(Quartered(), VaeLayout(scaling_factor=1.0))
    make = sampler(lambda noisy, _: torch.full_like(noisy, 3.0), noising=Noising(vae=vae), method=method)
    pixels_BHWC = make(np.arange(2))
    assert pixels_BHWC.shape == (2, SIDE, SIDE, 3)
    assert set(pixels_BHWC.unique().tolist()) == {round((0.75 * 0.5 + 0.5) * 255)}
