"""Noise and reconstruction."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from typing_extensions import override

from mptui.data.batch import Batch
from mptui.data.noise_schedule import min_snr_weights
from mptui.registry.names import NoiseSchedule, Prediction
from mptui.tasks.base import MeanTask, SumMetrics

# Denoising diffusion: mean squared error of the prediction, and its coefficient of determination
# -----------------------------------------------------------------------------------------------
# Shapes: B images, C channels, H and W pixels, T timesteps.


class Diffusion(MeanTask):
    """Learn to predict the noise in noisy images: a denoising diffusion model (Ho, Jain and Abbeel 2020).

    The loss of a window is the mean squared error of the prediction, weighted by timestep with
    `min_snr_gamma`; without, predicting zeros gives about 1.

    Args:
        noise_schedule: The noise levels by timestep.
        prediction: What the network predicts: the noise, or v, of about the same variance.
        min_snr_gamma: As of `min_snr_weights`; None: timesteps are equal.
    """

    primary = "r2"

    def __init__(
        self,
        noise_schedule: NoiseSchedule = "cosine",
        prediction: Prediction = "epsilon",
        min_snr_gamma: float | None = None,
    ) -> None:
        self._weights_T: torch.Tensor | None = None
        self.chance = 1.0
        if min_snr_gamma is not None:
            weights = min_snr_weights(noise_schedule, prediction, min_snr_gamma)
            self._weights_T = torch.tensor(weights, dtype=torch.float32)
            self.chance = float(weights.mean())

    @override
    def mean(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Outputs are predicted_BCHW."""
        # float32 before the squares: their sum overflows float16
        predicted_BCHW, targets_BCHW = outputs[: batch.size].float(), batch.targets[: batch.size]
        if self._weights_T is None:
            return F.mse_loss(predicted_BCHW, targets_BCHW)
        errors_B = (predicted_BCHW - targets_BCHW).square().flatten(1).mean(1)
        return (errors_B * self._weights_of(batch)).mean()

    def _weights_of(self, batch: Batch) -> torch.Tensor:
        assert self._weights_T is not None
        assert batch.timesteps is not None
        timesteps_B = batch.timesteps[: batch.size]
        if self._weights_T.device != timesteps_B.device:
            self._weights_T = self._weights_T.to(timesteps_B.device)
        return self._weights_T.index_select(0, timesteps_B)

    @override
    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """The noise is 0, at timestep 0."""
        rows = len(images_BCHW)
        timesteps_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        noise_BCHW = torch.zeros_like(images_BCHW)
        return Batch(images_BCHW, noise_BCHW, rows, rows, np.arange(rows), timesteps=timesteps_B)

    @override
    def metrics(self, device: torch.device, *, training: bool = False) -> "ExplainedVariance":
        return ExplainedVariance(device, finite_only=training)


class ExplainedVariance(SumMetrics):
    """`r2`: the share of the target's variance that is explained, 1 - squared error / squared target.

    The target is the noise, or v. 1 is a perfect prediction, 0 is as good as predicting zeros, and below 0 is
    worse.
    """

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Outputs are predicted_BCHW."""
        targets_BCHW = batch.targets[: batch.size]
        errors_BCHW = outputs[: batch.size].float() - targets_BCHW
        self.add(errors_BCHW.square().sum(), targets_BCHW.square().sum())

    @override
    def compute(self) -> dict[str, float]:
        errors, targets = self.totals()
        return {"r2": 1 - errors / targets if targets else math.nan}


# Reconstruction: what a variational autoencoder (VAE) learns, and how close its images are
# -----------------------------------------------------------------------------------------
# Shapes: B images, C channels, H and W pixels.

KL_WEIGHT = 1e-6
"""Weight of the divergence of latents from a standard normal distribution, as in Rombach et al. (2022)."""

_PEAK = 2.0
"""The range of pixels, which are normalised to -1..1."""
_LEAST_ERROR = 1e-12
"""So that a perfect reconstruction has a ratio, too."""


class Reconstruction(MeanTask):
    """Learn to encode and decode images: mean squared error, and a little of the divergence of their latents.

    The loss is that of Rombach et al. (2022), https://arxiv.org/abs/2112.10752, with squares in place of
    absolute differences, and without a perceptual and an adversarial part, which need other networks.
    The image of a sample is its target.
    """

    primary = "psnr"
    chance = 1.0

    @override
    def mean(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Outputs are as of `Autoencoder.forward`."""
        outputs_BCHW = outputs[: batch.size].float()
        mean = F.mse_loss(outputs_BCHW[:, :-1], batch.images_BCHW[: batch.size])
        return mean + KL_WEIGHT * outputs_BCHW[:, -1].mean()

    @override
    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        rows = len(images_BCHW)
        labels_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, labels_B, rows, rows, np.arange(rows))

    @override
    def metrics(self, device: torch.device, *, training: bool = False) -> "ReconstructionQuality":
        return ReconstructionQuality(device, finite_only=training)


class ReconstructionQuality(SumMetrics):
    """`psnr`: the peak signal-to-noise ratio of reconstructed images in dB, by the error of all pixels."""

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Outputs are as of `Autoencoder.forward`."""
        images_BCHW = batch.images_BCHW[: batch.size]
        squares_BCHW = (outputs[: batch.size, :-1].float() - images_BCHW).square()
        means_B = squares_BCHW.flatten(1).mean(1)
        self.add(means_B.sum(), means_B.new_full((), batch.size))

    @override
    def compute(self) -> dict[str, float]:
        errors, images = self.totals()
        if not images or not math.isfinite(errors):
            return {"psnr": math.nan}
        return {"psnr": 10 * math.log10(_PEAK**2 * images / max(errors, _LEAST_ERROR))}
