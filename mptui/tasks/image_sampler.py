"""Makes images with a diffusion model: DDIM (Song, Meng and Ermon 2021), ancestral sampling (Ho et al. 2020).

All arithmetic but the network's is in float32. The noise of an image depends only on the seed and its index,
so that neither the batch nor the number of images changes it.

Shapes: B images, C channels, H and W pixels, T timesteps.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import to_device
from mptui.data.noise import Noising, normal_images
from mptui.data.noise_schedule import TIMESTEPS, alphas_cumprod
from mptui.data.rng import RandomStream, keys
from mptui.data.transforms import Normalization
from mptui.registry.names import SamplingMethod

_LARGEST_LATENT = 5.0
"""Latents are scaled to a standard deviation of about 1."""


def sampling_timesteps(steps: int) -> list[int]:
    """Return the timesteps that sampling visits: evenly spaced, falling, from the last one of training on.

    That is the spacing "trailing" of Lin et al. (2024), "Common Diffusion Noise Schedules and Sample Steps
    are Flawed", table 2.
    """
    return [round(TIMESTEPS * (steps - number) / steps) - 1 for number in range(steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSampler:
    """Makes images from noise.

    Attributes:
        network: Called with noisy images_BCHW, timesteps_B and, with classes, labels_B; in eval mode, on
            `device`.
        forward_context: Returns the context of a forward pass, e.g. autocast.
        noising: The schedule, the target, the classes and the VAE that the network was trained with.
        normalization: That of the training images, whose pixels are in 0..1.
        side: Height and width of the images.
        device: The device of the network.
        channels_last: Whether its images are NHWC in memory.
        method: ddim or ancestral.
        steps: Forward passes for each image, at most T.
        seed: Seed of the noise.
        guidance: With classes, the factor of the difference that they make: classifier-free guidance (Ho and
            Salimans 2022, with w + 1); 1: none, at half the cost.
    """

    network: Callable[..., torch.Tensor]
    forward_context: Callable[[], AbstractContextManager[Any]]
    noising: Noising
    normalization: Normalization
    side: int
    device: torch.device
    channels_last: bool
    method: SamplingMethod
    steps: int
    seed: int
    guidance: float = 1.0

    @torch.no_grad()
    def __call__(
        self,
        indices: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64] | None = None,
        on_step: Callable[[int], None] = lambda done: None,
    ) -> torch.Tensor:
        """Make images.

        Args:
            indices: The number of each.
            labels: The class of each; None: any.
            on_step: Called with the steps done.

        Returns:
            pixels_BHWC, uint8, on the device.
        """
        labels_B = None if labels is None else to_device(labels, self.device)
        alpha_bar = alphas_cumprod(self.noising.schedule)
        timesteps = sampling_timesteps(self.steps)
        mean_C11, std_C11 = self._statistics()
        limits_2C11 = torch.stack([-mean_C11 / std_C11, (1 - mean_C11) / std_C11])
        if self.noising.vae is not None:
            limits_2C11 = torch.tensor([-1, 1], device=self.device).view(2, 1, 1, 1) * _LARGEST_LATENT
        images_BCHW = self._noise(indices, 0)
        for number, timestep in enumerate(timesteps, start=1):
            predicted_BCHW = self._predicted(images_BCHW, labels_B, timestep)
            clean_BCHW, noise_BCHW = self._split(
                images_BCHW, predicted_BCHW, float(alpha_bar[timestep]), limits_2C11
            )
            after = float(alpha_bar[timesteps[number]]) if number < self.steps else 1.0
            fresh = self._fresh_noise(float(alpha_bar[timestep]), after)
            kept = math.sqrt(max(0.0, 1 - after - fresh**2))
            images_BCHW = math.sqrt(after) * clean_BCHW + kept * noise_BCHW
            if fresh:
                images_BCHW += fresh * self._noise(indices, number)
            on_step(number)
        if self.noising.vae is not None:
            images_BCHW = self.noising.vae.decode(images_BCHW)
        pixels_BCHW = (images_BCHW * std_C11 + mean_C11).mul_(255).round_().clamp_(0, 255)
        return pixels_BCHW.to(torch.uint8).permute(0, 2, 3, 1)

    def _noise(self, indices: npt.NDArray[np.int64], number: int) -> torch.Tensor:
        drawn = keys(RandomStream.SAMPLING, self.seed, number, indices).view(np.int64)
        vae = self.noising.vae
        shape = (len(self.normalization.mean), self.side, self.side) if vae is None else vae.shape(self.side)
        return normal_images(to_device(drawn, self.device), shape, channels_last=self.channels_last)

    def _fresh_noise(self, alpha_bar: float, after: float) -> float:
        """Return the standard deviation of the noise that a step adds.

        DDIM adds none; with that of Song et al., equation 16, at eta = 1, the same step is the ancestral one.
        """
        if self.method == "ddim":
            return 0.0
        return math.sqrt((1 - after) / (1 - alpha_bar) * (1 - alpha_bar / after))

    def _split(
        self,
        images_BCHW: torch.Tensor,
        predicted_BCHW: torch.Tensor,
        alpha_bar: float,
        limits_2C11: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image and the noise that noisy images are made of, by the network's prediction.

        The image is clipped to the range of pixels or latents, and the noise is what is left.
        """
        image_share, noise_share = math.sqrt(alpha_bar), math.sqrt(1 - alpha_bar)
        if self.noising.prediction == "v":
            clean_BCHW = image_share * images_BCHW - noise_share * predicted_BCHW
        else:
            clean_BCHW = (images_BCHW - noise_share * predicted_BCHW) / image_share
        clean_BCHW = torch.clamp(clean_BCHW, *limits_2C11)
        return clean_BCHW, (images_BCHW - image_share * clean_BCHW) / noise_share

    def _predicted(
        self, images_BCHW: torch.Tensor, labels_B: torch.Tensor | None, timestep: int
    ) -> torch.Tensor:
        timesteps_B = torch.full((len(images_BCHW),), timestep, device=self.device)
        inputs = [images_BCHW, timesteps_B, *([] if labels_B is None else [labels_B])]
        is_guided = labels_B is not None and self.guidance != 1.0
        if is_guided:
            any_class = [images_BCHW, timesteps_B, torch.full_like(inputs[-1], self.noising.null_label or 0)]
            inputs = [torch.cat(pair) for pair in zip(inputs, any_class, strict=True)]
        with self.forward_context():
            outputs = self.network(*inputs)
        if not is_guided:
            return outputs.float()
        of_class, of_any = outputs.float().chunk(2)
        return of_any + self.guidance * (of_class - of_any)

    def _statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = np.array([self.normalization.mean, self.normalization.std], np.float32)[:, :, None, None]
        mean_C11, std_C11 = to_device(found, self.device)
        return mean_C11, std_C11
