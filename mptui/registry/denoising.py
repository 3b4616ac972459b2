"""What a diffusion model learns from: how noise grows with the timestep, and what is predicted."""

from typing import Literal

NoiseSchedule = Literal["cosine", "linear"]
"""cosine: of Nichol and Dhariwal (2021); linear: of Ho, Jain and Abbeel (2020)."""
Prediction = Literal["epsilon", "v"]
"""epsilon: the noise; v: sqrt(a) x noise - sqrt(1 - a) x image (Salimans and Ho 2022)."""
SamplingMethod = Literal["ddim", "ancestral"]
"""ddim: no noise after the first (Song, Meng and Ermon 2021); ancestral: at each step (Ho et al. 2020)."""
