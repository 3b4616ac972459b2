import pytest
import torch
from torch import nn

from mptui.models.unet import UNet
from mptui.models.zoo import parameter_count

VARIANTS = [(up, norm) for up in ("transposed", "bilinear") for norm in ("batch", "group")]


@pytest.mark.parametrize(("up", "expected"), [("transposed", 31_037_698), ("bilinear", 17_263_042)])
def test_the_classic_network_has_the_classic_number_of_parameters(up, expected):
    with torch.device("meta"):
        assert parameter_count(UNet(2, up=up)) == expected


@pytest.mark.parametrize(("up", "norm"), VARIANTS)
@pytest.mark.parametrize("size", [(8, 8), (16, 24), (9, 15), (33, 50)])
def test_the_output_has_the_size_of_the_input(up, norm, size):
    model = UNet(5, width=4, depth=3, up=up, norm=norm)
    assert model(torch.randn(2, 3, *size)).shape == (2, 5, *size)


@pytest.mark.parametrize("depth", [1, 2, 6])
@pytest.mark.parametrize("up", ["transposed", "bilinear"])
def test_any_depth_and_a_width_of_one_work(depth, up):
    assert UNet(2, width=1, depth=depth, up=up)(torch.randn(2, 3, 64, 64)).shape == (2, 2, 64, 64)


@pytest.mark.parametrize(("up", "norm"), VARIANTS)
def test_channels_last_goes_through_the_whole_network(up, norm):
    model = UNet(3, width=8, depth=2, up=up, norm=norm).to(memory_format=torch.channels_last)
    leaves = [module for module in model.modules() if not list(module.children())]
    layouts = []
    for leaf in leaves:
        leaf.register_forward_hook(
            lambda _module, _inputs, output: layouts.append(
                output.is_contiguous(memory_format=torch.channels_last)
            )
        )
    images = torch.randn(2, 3, 21, 18).to(memory_format=torch.channels_last)
    model(images)
    assert len(layouts) > 20
    assert all(layouts)


def test_every_level_of_the_decoder_uses_its_skip_connection():
    torch.manual_seed(0)
    model = UNet(2, width=4, depth=3).eval()
    images = torch.randn(1, 3, 32, 32)
    whole = model(images)
    for level in model.decoder:
        hook = level.register_forward_pre_hook(
            lambda _module, inputs: (inputs[0], torch.zeros_like(inputs[1]))
        )
        assert not torch.allclose(model(images), whole)
        hook.remove()


def test_every_parameter_learns():
    model = UNet(3, width=4, depth=2)
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert without == []


def test_group_normalisation_keeps_images_apart():
    model = UNet(2, width=6, depth=2, norm="group")
    images = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(model(images)[:1], model(images[:1]), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("up", ["transposed", "bilinear"])
def test_fresh_logits_are_of_the_order_of_one(up):
    torch.manual_seed(0)
    logits = UNet(4, width=16, depth=3, up=up)(torch.randn(2, 3, 64, 64))
    assert 0.1 < logits.std() < 3


def test_a_unet_learns_a_mask():
    torch.manual_seed(0)
    images = torch.randn(4, 3, 16, 16)
    masks = (images[:, 0] > 0).long()
    model = UNet(2, width=8, depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
