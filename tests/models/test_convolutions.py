"""A convolution whose kernel exceeds a tiny image gets correct gradients in bf16 on a CPU."""

from functools import partial

import pytest
import torch
from torch import nn

from mptui.config.schema import ModelConfig
from mptui.models.layers import guard_convolutions, has_idle_taps
from mptui.models.zoo import build

slow = partial(pytest.param, marks=pytest.mark.slow)


def taps_that_see_the_image(conv, sides):
    """Compute `has_idle_taps` by a convolution, instead of in closed form: the taps that ever contribute."""
    images = torch.ones(1, 1, *sides)
    plain = nn.Conv2d(
        1, 1, conv.kernel_size, stride=conv.stride, padding=conv.padding, dilation=conv.dilation, bias=False
    )
    plain(images).sum().backward()
    assert plain.weight.grad is not None
    return plain.weight.grad[0, 0] > 0


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [
        pytest.param(
            kernel, stride, dilation, marks=[pytest.mark.slow] * ((place + stride + dilation) % 6 > 0)
        )
        for place, kernel in enumerate([1, 2, 3, 5, 7])
        for stride in (1, 2, 3, 4)
        for dilation in (1, 2)
    ],
)
def test_idle_taps_are_those_that_see_only_padding(kernel, stride, dilation):
    for pad in {0, kernel // 2, dilation * (kernel // 2)}:
        conv = nn.Conv2d(1, 1, kernel, stride=stride, padding=pad, dilation=dilation)
        reach = dilation * (kernel - 1) + 1
        for height in range(1, 24):
            for width in (height, 1, 3):
                if min(height, width) + 2 * pad < reach:
                    continue
                seen = taps_that_see_the_image(conv, (height, width))
                assert has_idle_taps(conv, (height, width)) == (not seen.all()), (pad, height, width)


def spoil_memory(numbers):
    """Leave NaN in the memory that the next tensors of this size get."""
    dtypes = (torch.float32, torch.bfloat16)
    spoilt = [torch.full((numbers,), torch.nan, dtype=dtype) for dtype in dtypes for _ in range(4)]
    del spoilt


def weight_gradient(conv, images, dtype):
    conv.zero_grad()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = conv(images).float().square().sum()
    spoil_memory(conv.weight.numel())
    loss.backward()
    return conv.weight.grad


@pytest.mark.parametrize(("kernel", "stride", "side"), [(3, 2, 1), (2, 2, 1), slow(7, 1, 2), slow(5, 3, 2)])
def test_bf16_gradients_are_those_of_fp32_on_a_tiny_image(kernel, stride, side):
    torch.manual_seed(0)
    conv = nn.Conv2d(256, 512, kernel, stride=stride, padding=kernel // 2, bias=False)
    guard_convolutions(conv)
    images = torch.randn(8, 256, side, side)
    expected = weight_gradient(conv, images, torch.float32).clone()
    for _ in range(3):
        found = weight_gradient(conv, images, torch.bfloat16)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


def test_larger_images_stay_in_bf16():
    conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    guard_convolutions(conv)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(torch.randn(2, 3, 8, 8)).dtype == torch.bfloat16
        assert conv(torch.randn(2, 3, 1, 1)).dtype == torch.float32


def test_the_networks_of_the_zoo_are_mended_and_keep_their_names():
    model = build(ModelConfig(name="resnet18"), num_classes=3, task="classification", side=32)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = []
        model.get_submodule("layer4.0.conv1").register_forward_hook(
            lambda _m, _i, out: found.append(out.dtype)
        )
        model.train()(torch.randn(4, 3, 16, 16))
    assert found == [torch.float32]
    assert not any("_conv_forward" in name for name in model.state_dict())
