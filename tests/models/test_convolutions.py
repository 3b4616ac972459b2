"""Convolutions of tiny images on a CPU are the same function, also in bf16 where a kernel exceeds them."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from mptui.config.schema import ModelConfig
from mptui.models.layers import has_idle_taps, multiply_tiny_images
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
    multiply_tiny_images(conv)
    images = torch.randn(8, 256, side, side)
    expected = weight_gradient(conv, images, torch.float32).clone()
    for _ in range(3):
        found = weight_gradient(conv, images, torch.bfloat16)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


def outputs_and_gradients(conv, images_BCHW):
    conv.zero_grad()
    images_BCHW = images_BCHW.clone().requires_grad_()
    outputs = conv(images_BCHW)
    (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sum().backward()
    return outputs, images_BCHW.grad, *(parameter.grad.clone() for parameter in conv.parameters())


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
def test_a_tiny_image_is_convolved_as_by_torch(kernel, groups):
    torch.manual_seed(0)
    for stride, dilation, pad in product((1, 2, 3), (1, 2), (0, kernel // 2, kernel)):
        for sides in ((1, 1), (1, 2), (2, 2), (3, 1), (5, 2)):
            if min(sides) + 2 * pad < dilation * (kernel - 1) + 1:
                continue
            given = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
            conv = nn.Conv2d(4, 8, kernel, **given, bias=stride == 1).double()
            images = torch.randn(3, 4, *sides, dtype=torch.double)
            expected = outputs_and_gradients(conv, images)
            multiply_tiny_images(conv)
            for found, value in zip(outputs_and_gradients(conv, images), expected, strict=True):
                torch.testing.assert_close(found, value, msg=f"{given} {sides}")


def test_other_paddings_are_those_of_torch():
    for conv in (nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")):
        images = torch.randn(2, 4, 2, 2)
        expected = conv(images)
        multiply_tiny_images(conv)
        torch.testing.assert_close(conv(images), expected)


def test_an_exported_network_has_its_convolutions():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    multiply_tiny_images(conv)
    program = torch.export.export(conv, (torch.randn(2, 4, 2, 2),))
    assert any("conv2d" in str(node.target) for node in program.graph.nodes)


def test_the_networks_of_the_zoo_have_it_and_keep_their_names():
    model = build(ModelConfig(name="resnet18"), num_classes=3, task="classification", side=32)
    torch.manual_seed(0)
    convolution = model.get_submodule("layer4.0.conv1").train()
    images = torch.randn(4, 256, 1, 1)
    expected = weight_gradient(convolution, images, torch.float32).clone()
    found = weight_gradient(convolution, images, torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())
    assert not any("_conv_forward" in name for name in model.state_dict())
