"""Weights of other programs: their endings, keys and prefixes, and averages beside the weights as trained."""

import argparse

import pytest
import torch
from torch import nn
from torch.optim import SGD

from mptui.errors import ConfigError
from mptui.models.weights import load_weights


class Net(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, num_classes)


@pytest.fixture
def trained():
    torch.manual_seed(1)
    return Net().state_dict()


@pytest.fixture
def average(trained):
    return {name: tensor + 0.25 if tensor.is_floating_point() else tensor for name, tensor in trained.items()}


def loaded(path, content, key=None):
    """Save a file and load it into a new network; return the network's weights and the warnings."""
    torch.save(content, path)
    model = Net()
    told = load_weights(model, path, key)
    return model.state_dict(), told


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in other if "num_batches" not in name)


def with_prefix(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("name", ["best.pth.tar", "last.ckpt", "pytorch_model.bin", "a.pt.tar"])
def test_files_of_torch_have_many_endings(name, trained, tmp_path):
    assert same(loaded(tmp_path / name, {"state_dict": trained, "epoch": 3})[0], trained)


@pytest.mark.parametrize("key", ["model_state_dict", "model", "state_dict", "net", "ema", "my_weights"])
def test_a_checkpoint_has_one_state_dict_by_any_key(key, trained, tmp_path):
    model = Net()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    content = {"epoch": 3, key: trained, "optimizer_state_dict": optimizer.state_dict(), "loss": 0.1}
    weights, told = loaded(tmp_path / "w.pth", content)
    assert (same(weights, trained), told) == (True, [])


def test_flags_beside_the_weights_are_no_foreign_code(trained, tmp_path):
    content = {"state_dict": trained, "arch": "net", "args": argparse.Namespace(lr=0.1)}
    assert same(loaded(tmp_path / "timm.pth.tar", content)[0], trained)


@pytest.mark.parametrize(
    ("raw", "averaged", "prefix"),
    [("state_dict", "state_dict_ema", ""), ("model", "model_ema", "module."), ("params", "params_ema", "")],
)
def test_averaged_weights_beside_trained_ones_are_said_and_can_be_chosen(
    raw, averaged, prefix, trained, average, tmp_path
):
    content = {raw: trained, averaged: {"n_averaged": torch.tensor(3), **with_prefix(prefix, average)}}
    weights, told = loaded(tmp_path / "w.pth", content)
    assert same(weights, trained)
    assert told == [
        f"w.pth: the weights of {raw} are taken; averaged ones are there, too:"
        f" --set model.weights_key={averaged}"
    ]
    weights, told = loaded(tmp_path / "w.pth", content, averaged)
    assert (same(weights, average), told) == (True, [])


@pytest.mark.parametrize("prefix", ["model.", "backbone.", "module.model.", "net.encoder."])
def test_a_prefix_that_fits_the_network_is_taken_away(prefix, trained, tmp_path):
    weights, told = loaded(tmp_path / "w.ckpt", {"state_dict": with_prefix(prefix, trained)})
    assert (same(weights, trained), told) == (True, [])


def test_what_lies_beside_the_prefix_is_named(trained, tmp_path):
    body = {name: tensor for name, tensor in trained.items() if not name.startswith("fc.")}
    content = with_prefix("backbone.", body) | with_prefix("head.", {"fc.weight": trained["fc.weight"]})
    weights, told = loaded(tmp_path / "w.pth", content)
    assert same(weights, body)
    assert told[0] == "w.pth: the weights of backbone are taken, and not head.fc.weight"
    assert "it has no head" in told[1]


def test_averages_by_prefix_are_said_and_can_be_chosen(trained, average, tmp_path):
    content = with_prefix("module.encoder_q.", trained) | with_prefix("module.encoder_k.", average)
    weights, told = loaded(tmp_path / "moco.pth.tar", {"state_dict": content})
    assert same(weights, trained)
    assert "--set model.weights_key=encoder_k" in told[-1]
    assert same(loaded(tmp_path / "moco.pth.tar", {"state_dict": content}, "encoder_k")[0], average)


@pytest.mark.parametrize(
    ("content", "told", "remedy"),
    [
        (
            {"one": {"a": torch.ones(2)}, "two": {"a": torch.ones(2)}},
            "several state dicts: one, two",
            "weights_key=one",
        ),
        ({"epoch": 3, "loss": 0.5}, "not a state dict, but a dict with the keys epoch, loss", "state_dict()"),
        (Net(), r"holds Python objects \(tests\.models\.test_weights_elsewhere\.Net\)", "state_dict()"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_what_is_there(content, told, remedy, tmp_path):
    with pytest.raises(ConfigError, match=told) as raised:
        loaded(tmp_path / "w.pth", content)
    assert remedy in raised.value.hint


def test_two_networks_of_one_kind_are_refused_until_one_is_chosen(trained, average, tmp_path):
    content = with_prefix("left.", trained) | with_prefix("right.", average)
    with pytest.raises(ConfigError, match=r"several times: left\., right\.") as raised:
        loaded(tmp_path / "w.pth", content)
    assert "--set model.weights_key=left" in raised.value.hint
    assert same(loaded(tmp_path / "w.pth", content, "right")[0], average)


def test_a_key_that_is_not_there_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.weights_key") as raised:
        loaded(tmp_path / "w.pth", {"state_dict": trained}, "gone")
    assert "state_dict" in raised.value.message
