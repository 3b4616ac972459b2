"""Denoising diffusion: mean squared error of the predicted noise, and its coefficient of determination.

Shapes: B images, C channels, H and W pixels.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch, Window


class Diffusion:
    """Learn to predict the noise in noisy images: a denoising diffusion model (Ho, Jain and Abbeel 2020).

    The loss of a window is the mean squared error of the predicted noise; predicting zeros gives about 1.
    """

    primary = "r2"
    chance = 1.0

    def window_weight(self, window: Window) -> float:
        """See `Task.window_weight`."""
        return window.valid

    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """See `Task.loss`; outputs are noise_BCHW."""
        # float32 before the squares: their sum overflows float16
        mean = F.mse_loss(outputs[: batch.size].float(), batch.targets[: batch.size])
        return mean if batch.size == window_size else mean * (batch.size / window_size)

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Task.loss_sums`; outputs are noise_BCHW."""
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


class ExplainedVariance:
    """`r2`: the share of the noise's variance that is explained, 1 - squared error / squared noise.

    1 is a perfect prediction, 0 is as good as predicting zeros, and below 0 is worse.

    Args:
        device: Device of the sums.
        finite_only: Leave out batches whose sums are not finite.
    """

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        # squared errors, squared noise
        self._sums = torch.zeros(2, device=device)
        self._finite_only = finite_only

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`; outputs are noise_BCHW."""
        noise_BCHW = batch.targets[: batch.size]
        errors_BCHW = outputs[: batch.size].float() - noise_BCHW
        sums = torch.stack([errors_BCHW.square().sum(), noise_BCHW.square().sum()])
        if self._finite_only:
            sums = torch.where(torch.isfinite(sums).all(), sums, 0.0)
        self._sums += sums

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        errors, noise = self._sums.tolist()
        return {"r2": 1 - errors / noise if noise else math.nan}

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Empty: images have no classes here."""
        return {}

    def confusion(self) -> torch.Tensor | None:
        """None: images have no classes here."""
        return None

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self._sums.zero_()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`."""
        return {"sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        self._sums.copy_(state["sums"])
