"""Fits a network for RGB to images of another number of bands: its first convolution is adapted."""

import torch
from torch import nn

RGB_BANDS = 3


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    """Return the convolution that sees the image, the first one registered, and its name; or None."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    return next(found, None)


def adapt_first_convolution(model: nn.Module, bands: int) -> bool:
    """Let the first convolution of a network for RGB with random weights take `bands` bands.

    Its weights are drawn anew, so that its outputs keep their variance.

    Returns:
        Whether it takes them now; False: it takes neither RGB nor these bands.
    """
    found = first_convolution(model)
    if found is not None and found[1].in_channels == bands:
        return True
    if found is None or found[1].in_channels != RGB_BANDS or found[1].groups != 1:
        return False
    conv = found[1]
    out, _, height, width = conv.weight.shape
    drawn = torch.randn(out, bands, height, width, dtype=conv.weight.dtype, device=conv.weight.device)
    conv.weight = nn.Parameter(drawn * conv.weight.detach().std() * (RGB_BANDS / bands) ** 0.5)
    conv.in_channels = bands
    return True


def adapted_filters(weight: torch.Tensor, bands: int) -> torch.Tensor:
    """Convert the filters of a first convolution from RGB to other bands, as timm does.

    For one band, they are summed over RGB. For others, R, G and B are repeated in turn and scaled by
    3 / bands, which keeps the size of the outputs (`timm.models.adapt_input_conv`).

    Args:
        weight: Filters of shape (O, 3, height, width).
        bands: Number of bands.
    """
    if bands == 1:
        return weight.sum(dim=1, keepdim=True)
    turns = -(-bands // RGB_BANDS)
    return weight.repeat(1, turns, 1, 1)[:, :bands] * (RGB_BANDS / bands)
