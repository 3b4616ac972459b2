"""One-dimensional views of dense tensors."""

import torch


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 1-D view of a dense tensor in memory order, whatever the order of its axes."""
    return tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,))
