"""Reconstruction: what a variational autoencoder (VAE) learns, and how close its images are.

Shapes: B images, C channels, H and W pixels.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch, Window
from mptui.tasks.sum_metrics import SumMetrics

KL_WEIGHT = 1e-6
"""Weight of the divergence of latents from a standard normal distribution, as in Rombach et al. (2022)."""

_PEAK = 2.0
"""The range of pixels, which are normalised to -1..1."""
_LEAST_ERROR = 1e-12
"""So that a perfect reconstruction has a ratio, too."""


class Reconstruction:
    """Learn to encode and decode images: mean squared error, and a little of the divergence of their latents.

    The loss is that of Rombach et al. (2022), https://arxiv.org/abs/2112.10752, with squares in place of
    absolute differences, and without a perceptual and an adversarial part, which need other networks.
    The image of a sample is its target.
    """

    primary = "psnr"
    chance = 1.0

    def window_weight(self, window: Window) -> float:
        """See `Task.window_weight`."""
        return window.valid

    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """See `Task.loss`; outputs are as of `Autoencoder.forward`."""
        outputs_BCHW = outputs[: batch.size].float()
        mean = F.mse_loss(outputs_BCHW[:, :-1], batch.images_BCHW[: batch.size])
        mean = mean + KL_WEIGHT * outputs_BCHW[:, -1].mean()
        return mean if batch.size == window_size else mean * (batch.size / window_size)

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Task.loss_sums`."""
        over_samples = batch.size * self.loss(outputs, batch, batch.valid, batch.size)
        return torch.stack((torch.zeros_like(over_samples), over_samples))

    def made_up_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """See `Task.made_up_batch`."""
        rows = len(images_BCHW)
        labels_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, labels_B, rows, rows, np.arange(rows))

    def metrics(self, device: torch.device, *, training: bool = False) -> "ReconstructionQuality":
        """See `Task.metrics`."""
        return ReconstructionQuality(device, finite_only=training)


class ReconstructionQuality(SumMetrics):
    """`psnr`: the peak signal-to-noise ratio of reconstructed images in dB, by the error of all pixels."""

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`; outputs are as of `Autoencoder.forward`."""
        images_BCHW = batch.images_BCHW[: batch.size]
        squares_BCHW = (outputs[: batch.size, :-1].float() - images_BCHW).square()
        means_B = squares_BCHW.flatten(1).mean(1)
        self.add(means_B.sum(), means_B.new_full((), batch.size))

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        errors, images = self.totals()
        if not images or not math.isfinite(errors):
            return {"psnr": math.nan}
        return {"psnr": 10 * math.log10(_PEAK**2 * images / max(errors, _LEAST_ERROR))}
