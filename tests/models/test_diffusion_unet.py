import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.diffusion_unet import DiffusionUNet
from mptui.models.zoo import build, check, parameter_count


def awake(**settings):
    """Return a small network whose zero-initialized layers are not zero."""
    torch.manual_seed(0)
    model = DiffusionUNet(**{"width": 8, "depth": 2, **settings})
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return model


def noisy(*size, batch=2):
    return torch.randn(batch, 3, *size), torch.arange(batch) * 400 + 7


def wide():
    """Return the default at the width of the diffusers library's, without memory."""
    with torch.device("meta"):
        return DiffusionUNet(width=224, depth=3)


def test_its_default_at_the_width_of_diffusers_has_the_parameters_of_that():
    assert parameter_count(wide()) / 1e6 == pytest.approx(270, abs=1)


@pytest.mark.slow
def test_its_default_at_the_width_of_diffusers_costs_what_that_costs():
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        wide()(torch.zeros(1, 3, 64, 64), torch.zeros(1, dtype=torch.int64))
    assert counter.get_total_flops() / 2e9 == pytest.approx(92.4, abs=0.1)


@pytest.mark.parametrize(("width", "depth", "size"), [(8, 1, (8, 2)), (12, 2, (16, 24)), (1, 3, (8, 8))])
def test_it_answers_with_noise_of_the_size_of_the_images(width, depth, size):
    model = DiffusionUNet(width=width, depth=depth)
    answer = model(*noisy(*size))
    assert answer.shape == (2, 3, *size)
    assert not answer.any()  # its initial output is zero


def test_every_parameter_learns_and_the_timestep_is_heard():
    model = awake()
    images, timesteps = noisy(16, 16)
    model(images, timesteps).square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    assert not torch.allclose(model(images, timesteps), model(images, timesteps + 1))


def test_the_deepest_levels_attend_to_all_pixels():
    model = awake(depth=3).eval()
    attending = [name for name, module in model.named_modules() if type(module).__name__ == "_Attention"]
    assert attending == [
        *(f"down.{n}.attention" for n in (6, 7, 9, 10)),
        "middle.0.attention",
        *(f"up.{n}.attention" for n in (0, 1, 2, 4, 5, 6)),
    ]


def test_attention_is_at_the_resolutions_that_are_named():
    def attending(attention, side=16):
        config = ModelConfig(name="diffusion_unet", width=4, depth=2, attention=attention)
        model = build(config, num_classes=1, task="diffusion", side=side)
        assert model(*noisy(side, side)).shape == (2, 3, side, side)
        return {name for name, module in model.named_modules() if type(module).__name__ == "_Attention"}

    first = {"down.0.attention", "down.1.attention", *(f"up.{n}.attention" for n in (8, 9, 10))}
    assert attending([16]) == first
    assert attending([]) == set()
    assert attending([8, 4]) == attending(None)
    assert "middle.0.attention" in attending([4])
    with pytest.raises(ConfigError) as error:
        attending([7])
    assert "model.attention = 7" in error.value.message
    assert "16, 8, 4" in error.value.hint


def test_a_class_is_heard_and_its_last_label_is_of_any_class():
    torch.manual_seed(0)
    config = ModelConfig(name="diffusion_unet", width=8, depth=1, class_conditional=True)
    model = build(config, num_classes=3, task="diffusion", side=8)
    assert isinstance(model, DiffusionUNet)
    nn.init.normal_(model.head.weight)
    for block in model.modules():
        if isinstance(block, nn.Conv2d | nn.Embedding) and not block.weight.any():
            nn.init.normal_(block.weight, std=0.1)
    images, timesteps = noisy(8, 8, batch=4)
    answers = [model(images, timesteps, torch.full((4,), label)) for label in range(4)]
    assert not any(torch.allclose(one, answers[0]) for one in answers[1:])
    assert torch.equal(model(images, timesteps), answers[3])


def test_classes_are_apart_from_the_first_step():
    torch.manual_seed(0)
    labels = DiffusionUNet(width=8, depth=1, classes=3).embed.labels
    assert labels is not None
    apart = torch.pdist(labels.weight)
    assert (apart > labels.weight.shape[1] ** 0.5).all()  # of values of N(0, 1): about 1.4 times the root


def test_a_network_without_classes_has_the_weights_of_earlier_versions():
    names = set(DiffusionUNet(width=4, depth=1).state_dict())
    assert {name for name in names if name.startswith("embed.")} == {
        f"embed.{layer}.{part}" for layer in ("inner", "outer") for part in ("weight", "bias")
    }
    with pytest.raises(ConfigError, match="resnet18 has no such setting"):
        check(ModelConfig(name="resnet18", class_conditional=True), "classification", 32)


def test_an_image_is_answered_alike_alone_and_in_a_batch():
    model = awake()
    images, timesteps = noisy(16, 16, batch=5)
    whole = model(images, timesteps)
    torch.testing.assert_close(model(images[3:], timesteps[3:]), whole[3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_it_trains_in_sixteen_bits_and_channels_last(dtype):
    model = awake().to(memory_format=torch.channels_last)
    images, timesteps = noisy(16, 16)
    images = images.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=dtype):
        answer = model(images, timesteps)
    answer.float().square().mean().backward()
    assert answer.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(answer.float(), model(images, timesteps), rtol=0.1, atol=0.1)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(("side", "depth", "use"), [(36, 3, 32), (44, 3, 48), (9, 1, 8), (8, 4, 16)])
def test_a_side_that_can_not_be_halved_so_often_is_refused_with_the_nearest(side, depth, use):
    config = ModelConfig(name="diffusion_unet", width=4, depth=depth)
    with pytest.raises(ConfigError) as error:
        check(config, "diffusion", side)
    assert str(side) in error.value.message
    assert f"data.image_size={use}" in error.value.hint
    model = build(config, num_classes=1, task="diffusion", side=use)
    assert model(*noisy(use, use)).shape == (2, 3, use, use)
