"""Works around a bf16 error of CPU convolutions whose kernel reaches beyond a tiny image.

oneDNN's bf16 weight gradient (AVX-512 and later) doesn't write the gradient of kernel taps that only see
padding, which should be zero: the previous content of the memory, even NaN, reaches the weights. Found with
torch 2.13 and 2.15, for strides above 1 and for kernels above 3; float32 and float16 are correct.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn


def guard_convolutions(model: nn.Module) -> None:
    """Let each convolution of `model` compute in float32 where bf16 on a CPU would corrupt its weights."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and _may_have_idle_taps(module):
            module._conv_forward = partial(_forward, module)  # type: ignore[method-assign]


def _may_have_idle_taps(conv: nn.Conv2d) -> bool:
    return isinstance(conv.padding, tuple) and (max(conv.stride) > 1 or max(conv.kernel_size) > 3)


def _forward(
    conv: nn.Conv2d, images_BCHW: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    plain: Callable[..., torch.Tensor] = partial(nn.Conv2d._conv_forward, conv)
    at_risk = (
        images_BCHW.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and has_idle_taps(conv, images_BCHW.shape[-2:])
    )
    if not at_risk:
        return plain(images_BCHW, weight, bias)
    with torch.autocast("cpu", enabled=False):
        return plain(images_BCHW.float(), weight.float(), None if bias is None else bias.float())


def has_idle_taps(conv: nn.Conv2d, sides: Sequence[int]) -> bool:
    """Whether a row or column of the kernel only sees padding, for images of `sides` (H, W)."""
    assert isinstance(conv.padding, tuple), "chosen so"
    dimensions = zip(sides, conv.kernel_size, conv.stride, conv.padding, conv.dilation, strict=True)
    return any(_idle(*dimension) for dimension in dimensions)


def _idle(side: int, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    if side >= kernel * dilation + stride + pad:
        return False
    outputs = (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    for tap in range(kernel):
        shift = tap * dilation - pad
        first = max(0, -(shift // stride))  # the first output whose `tap` is not left of the image
        if first >= outputs or first * stride + shift >= side:
            return True
    return False
