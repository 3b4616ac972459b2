"""Activation checkpointing of one network: which blocks, what is kept, what BatchNorm counts."""

from collections import Counter

import pytest
import torch

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.layers import WrappedForward, apply_activation_checkpointing, blocks_of
from mptui.models.zoo import build


def network(name, task="classification", side=32, **settings):
    torch.manual_seed(0)
    return build(ModelConfig(name=name, **settings), num_classes=3, task=task, side=side)


class Net(torch.nn.Module):
    """Two blocks with BatchNorm."""

    def __init__(self, momenta, dropout):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3, padding=1),
                torch.nn.BatchNorm2d(8, momentum=momentum),
                torch.nn.ReLU(),
                torch.nn.Dropout(dropout),
                torch.nn.Conv2d(8, 3, 3, padding=1),
            )
            for momentum in momenta
        )

    def forward(self, images):
        for block in self.blocks:
            images = images + block(images)
        return images


def saved_bytes(model, images):
    """Return the bytes that a forward pass keeps for the backward pass, and do the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(images)
    output.square().mean().backward()
    return sum(size for pointer, size in kept.items() if pointer not in own)


@pytest.mark.parametrize(
    ("name", "settings", "blocks"),
    [
        ("resnet18", {}, {"BasicBlock": 8}),
        ("vit_b_16", {"side": 32}, {"EncoderBlock": 12}),
        pytest.param("densenet121", {}, {"_DenseLayer": 58}, marks=pytest.mark.slow),
        ("unet", {"task": "segmentation", "width": 4}, {"Sequential": 4, "DecoderLevel": 4}),
        ("diffusion_unet", {"task": "diffusion", "width": 4, "depth": 1}, {"_Block": 12}),
    ],
)
def test_the_blocks_of_a_network_are_its_repeated_parts(name, settings, blocks):
    with torch.device("meta"):
        found = blocks_of(network(name, **settings))
    assert Counter(type(block).__name__ for block in found) == blocks


def test_the_blocks_of_timm_are_not_its_stages():
    pytest.importorskip("timm")
    found = blocks_of(network("timm/convnext_atto", side=32))
    assert {type(block).__name__ for block in found} == {"ConvNeXtBlock"}


def test_a_network_without_blocks_is_refused():
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match="activation_checkpointing: this network has no repeated blocks"),
    ):
        apply_activation_checkpointing(network("alexnet", side=64))


def compare(momenta, *, dropout=0.2, backend=None):
    images = torch.randn(4, 3, 16, 16)
    plain, checkpointed = Net(momenta, dropout), Net(momenta, dropout)
    names = [name for name, _ in plain.named_modules()]
    applied = apply_activation_checkpointing(checkpointed)
    if backend is not None:
        plain.compile(backend=backend)
        checkpointed.compile(backend=backend)
    before, after = saved_bytes(plain, images), saved_bytes(checkpointed, images)
    assert after < 0.5 * before
    for (name, one), other in zip(
        plain.state_dict().items(), checkpointed.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    for (name, one), other in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, msg=name)
    assert [norm.item() for name, norm in plain.named_buffers() if "batches" in name] == [1, 1]
    assert [name for name, _ in checkpointed.named_modules()] == names
    return checkpointed, applied, images, before


def test_gradients_and_statistics_are_those_without_it_in_less_memory():
    model, applied, images, before = compare((0.1, None))
    for wrapped in applied:
        wrapped.remove()
    assert saved_bytes(model, images) == before
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.slow
def test_compiled_code_recomputes_the_blocks_too():
    compare((0.1, 0.2), dropout=0.0, backend="aot_eager_decomp_partition")


def test_wrapped_forwards_are_removed_in_any_order():
    module = torch.nn.Identity()
    plus = WrappedForward(module, lambda forward: lambda x: forward(x) + 1)
    double = WrappedForward(module, lambda forward: lambda x: forward(x) * 2)
    assert module(3) == 8
    plus.remove()
    assert module(3) == 6
    double.remove()
    assert module(3) == 3
    assert "forward" not in vars(module)


class OneConvolution(torch.nn.Module):
    """A block as of many networks of one's own: a convolution, a norm, an activation."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, images):
        return torch.relu(self.norm(self.conv(images)))


def test_repeated_blocks_of_one_convolution_are_blocks():
    blocks = [OneConvolution() for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *blocks, torch.nn.Flatten(), torch.nn.Linear(16, 2))
    assert blocks_of(model) == blocks
