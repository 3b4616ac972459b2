"""Noise levels of a diffusion model by timestep, in float64.

At timestep t an image is sqrt(a_t) x image + sqrt(1 - a_t) x noise; `a` falls from nearly 1 to nearly 0.

Shapes: T timesteps.
"""

import numpy as np
import numpy.typing as npt

from mptui.registry.names import NoiseSchedule, Prediction

TIMESTEPS = 1000
"""T; timestep 0 is the least noisy one."""

_OFFSET = 0.008
_LARGEST_BETA = 0.999
_FIRST_BETA, _LAST_BETA = 1e-4, 0.02


def alphas_cumprod(schedule: NoiseSchedule = "cosine") -> npt.NDArray[np.float64]:
    """Return `a` by timestep, shape (T,), falling.

    cosine: Nichol and Dhariwal (2021), equation 17; linear: betas from 1e-4 to 0.02 (Ho, Jain and Abbeel
    2020, section 4).
    """
    betas: npt.NDArray[np.floating]
    if schedule == "linear":
        betas = np.linspace(_FIRST_BETA, _LAST_BETA, TIMESTEPS)
    else:
        angles = (np.arange(TIMESTEPS + 1) / TIMESTEPS + _OFFSET) / (1 + _OFFSET) * np.pi / 2
        shares = np.cos(angles) ** 2
        betas = np.minimum(1 - shares[1:] / shares[:-1], _LARGEST_BETA)
    alpha_bar: npt.NDArray[np.float64] = np.cumprod(1 - betas)
    return alpha_bar


def min_snr_weights(schedule: NoiseSchedule, prediction: Prediction, gamma: float) -> npt.NDArray[np.float64]:
    """Return the weight of the squared error at each timestep, shape (T,): Min-SNR-gamma (Hang et al. 2023).

    As an error of the predicted image the weight is min(SNR, gamma); that of the noise is 1/SNR of it, and
    that of v is 1/(SNR + 1) (section 3.4).
    """
    alpha_bar = alphas_cumprod(schedule)
    snr = alpha_bar / (1 - alpha_bar)
    weights: npt.NDArray[np.float64] = np.minimum(snr, gamma) / (snr if prediction == "epsilon" else snr + 1)
    return weights
