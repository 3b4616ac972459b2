"""Dense tensors as one row of numbers."""

import torch


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a dense tensor in the order of memory, whatever the order of its axes: 1-D, an alias."""
    return tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,))
