"""Each parameter gets the weight decay and the learning rate that its place in the network asks for."""

import itertools

import pytest
import torch

from mptui.config.schema import ModelConfig, TrainingConfig
from mptui.engine.optim.optimizers import lr_scales, parameter_groups
from mptui.models.layers import layers_of
from mptui.models.zoo import build
from tests.engine.small import small_net


def built(name, side=64):
    with torch.device("meta"):
        task = "segmentation" if name == "unet" else "classification"
        return build(ModelConfig(name=name), num_classes=3, task=task, side=side)


def rates(name, **training):
    model = built(name)
    scales = lr_scales(model, TrainingConfig(**training))
    return {key: scales[p] for key, p in model.named_parameters() if p in scales}


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("resnet18", 8), ("resnet50", 16), ("vit_b_16", 12), ("convnext_tiny", 21), ("efficientnet_b0", 17)],
)
def test_layers_are_the_stem_the_blocks_and_the_head_of_any_network(name, blocks):
    model = built(name)
    layers = layers_of(model)
    assert sorted(map(id, itertools.chain(*layers))) == sorted(map(id, model.parameters()))
    assert len(layers) == 1 + blocks + 1


def test_each_layer_is_slower_than_the_one_after_it():
    of = rates("resnet18", layer_decay=0.5)
    assert of["fc.weight"] == of["fc.bias"] == 1
    assert of["layer4.1.conv2.weight"] == of["layer4.1.bn1.bias"] == 0.5
    assert of["layer4.0.downsample.0.weight"] == 0.5**2
    assert of["conv1.weight"] == of["bn1.weight"] == 0.5**9
    of = rates("vit_b_16", layer_decay=0.5)
    assert of["class_token"] == of["encoder.pos_embedding"] == of["conv_proj.weight"] == 0.5**13
    assert of["encoder.layers.encoder_layer_0.ln_1.bias"] == 0.5**12


def test_the_head_has_a_rate_of_its_own():
    assert rates("unet", head_lr_scale=10) == {"head.weight": 10, "head.bias": 10}
    of = rates("unet", head_lr_scale=10, layer_decay=0.5)
    assert of["head.bias"] == 10
    assert of["decoder.3.conv.4.bias"] == of["decoder.3.up.weight"] == 0.5


def test_without_factors_there_are_two_groups():
    model = small_net()
    decaying, others = parameter_groups(model, TrainingConfig(weight_decay=0.1))
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(p.ndim >= 2 for p in decaying["params"])
    assert {p.ndim for p in others["params"]} == {1}
    assert {group["lr_scale"] for group in (decaying, others)} == {1.0}


class Tokens(torch.nn.Module):
    """A network that names a table of its own."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(3, 3))
        self.head = torch.nn.Linear(3, 3)

    def no_weight_decay(self):
        return {"table", "unknown"}


def test_tokens_positions_and_what_a_network_names_have_no_weight_decay():
    training = TrainingConfig(weight_decay=0.1)
    spared = {
        "vit_b_16": {"class_token", "encoder.pos_embedding"},
        "swin_t": {"features.1.0.attn.relative_position_bias_table"},
        "timm/test_vit": {"cls_token", "pos_embed"},
    }
    networks = {name: built(name, side=160) for name in spared} | {"own": torch.nn.Sequential(Tokens())}
    for name, model in networks.items():
        groups = parameter_groups(model, training)
        decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
        found = {key for key, p in model.named_parameters() if p.ndim > 1 and decay[p] == 0.0}
        assert found >= spared.get(name, {"0.table"})
        assert not any(key.endswith("weight") for key in found)
        assert all(decay[p] == 0.0 for p in model.parameters() if p.ndim < 2)
