"""Denoising diffusion: mean squared error of the prediction, and its coefficient of determination.

Shapes: B images, C channels, H and W pixels, T timesteps.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch, Window
from mptui.data.transforms.noise_schedule import min_snr_weights
from mptui.registry.denoising import NoiseSchedule, Prediction
from mptui.tasks.sum_metrics import SumMetrics


class Diffusion:
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

    def window_weight(self, window: Window) -> float:
        """See `Task.window_weight`."""
        return window.valid

    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """See `Task.loss`; outputs are predicted_BCHW."""
        # float32 before the squares: their sum overflows float16
        predicted_BCHW, targets_BCHW = outputs[: batch.size].float(), batch.targets[: batch.size]
        if self._weights_T is None:
            mean = F.mse_loss(predicted_BCHW, targets_BCHW)
        else:
            errors_B = (predicted_BCHW - targets_BCHW).square().flatten(1).mean(1)
            mean = (errors_B * self._weights_of(batch)).mean()
        return mean if batch.size == window_size else mean * (batch.size / window_size)

    def _weights_of(self, batch: Batch) -> torch.Tensor:
        assert self._weights_T is not None
        assert batch.timesteps is not None
        timesteps_B = batch.timesteps[: batch.size]
        if self._weights_T.device != timesteps_B.device:
            self._weights_T = self._weights_T.to(timesteps_B.device)
        return self._weights_T.index_select(0, timesteps_B)

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Task.loss_sums`; outputs are predicted_BCHW."""
        over_samples = batch.size * self.loss(outputs, batch, batch.valid, batch.size)
        return torch.stack((torch.zeros_like(over_samples), over_samples))

    def made_up_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """See `Task.made_up_batch`; the noise is 0, at timestep 0."""
        rows = len(images_BCHW)
        timesteps_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        noise_BCHW = torch.zeros_like(images_BCHW)
        return Batch(images_BCHW, noise_BCHW, rows, rows, np.arange(rows), timesteps=timesteps_B)

    def metrics(self, device: torch.device, *, training: bool = False) -> "ExplainedVariance":
        """See `Task.metrics`."""
        return ExplainedVariance(device, finite_only=training)


class ExplainedVariance(SumMetrics):
    """`r2`: the share of the target's variance that is explained, 1 - squared error / squared target.

    The target is the noise, or v. 1 is a perfect prediction, 0 is as good as predicting zeros, and below 0 is
    worse.
    """

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`; outputs are predicted_BCHW."""
        targets_BCHW = batch.targets[: batch.size]
        errors_BCHW = outputs[: batch.size].float() - targets_BCHW
        self.add(errors_BCHW.square().sum(), targets_BCHW.square().sum())

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        errors, targets = self.totals()
        return {"r2": 1 - errors / targets if targets else math.nan}
