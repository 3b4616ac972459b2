"""Values of all magnitudes, and their counts."""

import numpy as np
import torch

from mptui.engine import spectrum
from mptui.engine.spectrum import Spectrum

EDGES = [
    *(0.0, -0.0, 2.0**-24, 2.0**-25, 2.0**-25 * (1 + 2.0**-20), -(2.0**-25) * (1 - 2.0**-20)),
    *(2.0**-14, 2.0**-14 - 2.0**-25, 2.0**-14 - 2.0**-25 - 2.0**-37, 2.0**-14 - 2.0**-24),
    *(65504.0, 65519.99, 65520.0, -65520.0, 65536.0, 3e38, 2.0**-126, 1.0),
]


def values(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values of all magnitudes, including the limits of float16."""
    chance = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-40, 30, (5000,), generator=chance).float())
    some = torch.randn(5000, generator=chance) * sizes
    zeros = torch.zeros(int(torch.randint(0, 300, (), generator=chance)))
    return torch.cat([some, torch.tensor(EDGES), zeros]).to(dtype)


def row_of(tensor: torch.Tensor, most: int | None = None) -> np.ndarray:
    row = spectrum.new_rows(1, tensor.device)[0]
    spectrum.add(row, tensor, most=most)
    return row.numpy()


def counted(tensor: torch.Tensor, most: int | None = None) -> Spectrum:
    return Spectrum(row_of(tensor, most))
