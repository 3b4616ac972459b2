import errno
import os
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import DenseNet

from mptui.errors import ConfigError
from mptui.models.unet import UNet
from mptui.models.weights import load_weights
from tests.small_cnn import SmallCnn


def small_unet(num_classes=3, seed=0):
    torch.manual_seed(seed)
    return UNet(num_classes, width=4, depth=2)


def assert_same(model, other, *, but=()):
    theirs = other.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, theirs[name]) != name.startswith(tuple(but)), name


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        pytest.param(prefix, suffix, marks=[pytest.mark.slow] * ((number + place) % 3 > 0))
        for number, prefix in enumerate(["", "module.", "_orig_mod.", "module._orig_mod."])
        for place, suffix in enumerate(["safetensors", "pth", "pt"])
    ],
)
def test_weights_come_back_whatever_wrapped_the_network(tmp_path, suffix, prefix):
    source = small_unet(seed=1)
    state = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    path = tmp_path / f"weights.{suffix}"
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    model = small_unet()
    assert load_weights(model, path) == []
    assert_same(model, source)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_checkpoint_that_holds_a_state_dict_will_do(tmp_path, key):
    source = small_unet(seed=1)
    torch.save({key: source.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth")
    model = small_unet()
    assert load_weights(model, tmp_path / "checkpoint.pth") == []
    assert_same(model, source)


def test_a_head_for_other_classes_stays_random_with_a_warning(tmp_path):
    source = SmallCnn(num_classes=10)
    torch.save(source.state_dict(), tmp_path / "ten.pth")
    model = SmallCnn(num_classes=4)
    (warning,) = load_weights(model, tmp_path / "ten.pth")
    assert all(text in warning for text in ("ten.pth", "10 classes", "4", "fc"))
    assert model.fc.weight.shape == (4, 16)
    for name in ("layer1.0.weight", "layer1.1.running_var"):
        assert torch.equal(model.state_dict()[name], source.state_dict()[name])


def test_files_of_older_versions_are_read(tmp_path):
    layout = {"growth_rate": 4, "block_config": (1, 2), "num_init_features": 8, "num_classes": 3}
    source = DenseNet(**layout)
    old = {
        name.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): tensor
        for name, tensor in source.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "old.pth")
    model = DenseNet(**layout)
    assert load_weights(model, tmp_path / "old.pth") == []
    assert_same(model, source)


def test_auxiliary_heads_in_the_file_are_left_out(tmp_path):
    source = small_unet(seed=1)
    state = source.state_dict() | {"aux1.fc2.weight": torch.ones(2), "AuxLogits.fc.bias": torch.ones(2)}
    torch.save(state, tmp_path / "aux.pth")
    model = small_unet()
    assert load_weights(model, tmp_path / "aux.pth") == []
    assert_same(model, source)


def test_weights_of_another_network_are_refused_and_change_nothing(tmp_path):
    torch.save(nn.Linear(3, 2).state_dict() | {"classifier.weight": torch.ones(1)}, tmp_path / "other.pth")
    model = small_unet()
    with pytest.raises(ConfigError) as error:
        load_weights(model, tmp_path / "other.pth")
    assert "missing: encoder.0.0.weight" in error.value.message
    assert "more" in error.value.message
    assert "unexpected: weight, bias, classifier.weight" in error.value.message
    assert_same(model, small_unet())


def test_weights_of_another_width_are_refused_with_the_shapes(tmp_path):
    torch.save(UNet(3, width=8, depth=2).state_dict(), tmp_path / "wide.pth")
    model = small_unet()
    with pytest.raises(ConfigError, match=r"encoder\.0\.0\.weight is \(8, 3, 3, 3\), not \(4, 3, 3, 3\)"):
        load_weights(model, tmp_path / "wide.pth")
    assert_same(model, small_unet())


class Trap:
    """Runs code if it is unpickled without restrictions."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_code_in_a_file_is_never_run(tmp_path):
    torch.save({"weight": Trap(tmp_path / "sprung")}, tmp_path / "trap.pth")
    with pytest.raises(
        ConfigError, match=r"trap\.pth: holds Python objects \(io\.open\), whose code is not run"
    ):
        load_weights(small_unet(), tmp_path / "trap.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
@pytest.mark.parametrize("size", [0, 1, 7, 500, 5000])
def test_a_cut_file_is_refused(tmp_path, name, size):
    path = tmp_path / name
    state = small_unet().state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load_weights(small_unet(), path)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, torch.ones(2)])
def test_a_file_without_named_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ConfigError, match="not a state dict"):
        load_weights(small_unet(), tmp_path / "odd.pt")


@pytest.mark.parametrize(
    ("name", "reason"), [("none.pth", "no such file"), ("model.onnx", "not one of .safetensors")]
)
def test_a_path_that_cannot_be_weights_is_refused(tmp_path, name, reason):
    with pytest.raises(ConfigError, match=reason):
        load_weights(small_unet(), tmp_path / name)


def odd(weight):
    """Invalid contents of a weights file, and their error messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "sparse (sparse_coo)": weight.to_sparse(),
            "sparse (sparse_csr)": torch.eye(4).to_sparse_csr(),
            "on the meta device, without data": weight.to("meta"),
            "quantised (qint8)": torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
            "of dtype int32": (weight * 100).int(),
            "of dtype bool": weight > 0,
            "of dtype complex64": weight.to(torch.complex64),
            "of dtype float8_e4m3fn": weight.to(torch.float8_e4m3fn),
        }


FIRST = "encoder.0.0.weight"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("told", odd(torch.ones(1)))
def test_what_is_no_plain_floating_point_weight_is_refused_and_named(tmp_path, told):
    state = small_unet(seed=1).state_dict()
    torch.save({**state, FIRST: odd(state[FIRST])[told]}, tmp_path / "odd.pth")
    model = small_unet()
    with pytest.raises(ConfigError) as error:
        load_weights(model, tmp_path / "odd.pth")
    assert f"{FIRST} is {told}" in error.value.message
    assert_same(model, small_unet())


@pytest.mark.filterwarnings("ignore")
def test_a_nested_weight_is_refused(tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.save({**small_unet(seed=1).state_dict(), FIRST: nested}, tmp_path / "odd.pth")
    model = small_unet()
    with pytest.raises(ConfigError, match=f"{FIRST} is nested|not only tensors"):  # torch 2.15 reads none
        load_weights(model, tmp_path / "odd.pth")
    assert_same(model, small_unet())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_floating_point_types_are_read(tmp_path, dtype):
    source = small_unet(seed=1)
    state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in source.state_dict().items()}
    save_file(state, tmp_path / "half.safetensors")
    model = small_unet()
    assert load_weights(model, tmp_path / "half.safetensors") == []
    assert torch.allclose(model.state_dict()[FIRST], source.state_dict()[FIRST], atol=0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_named_as_that(tmp_path, value):
    state = {
        name: t.double() if t.is_floating_point() else t
        for name, t in small_unet(seed=1).state_dict().items()
    }
    state[FIRST][0, 0, 0, :2] = value
    save_file(state, tmp_path / "gone.safetensors")
    model = small_unet()
    with pytest.raises(ConfigError, match="weights that are not finite") as error:
        load_weights(model, tmp_path / "gone.safetensors")
    assert f"{FIRST}: 2 of 108 values are NaN or infinite" in error.value.message
    assert_same(model, small_unet())


def test_a_head_that_is_not_used_may_be_of_any_values(tmp_path):
    state = SmallCnn(num_classes=10).state_dict()
    state["fc.weight"].fill_(float("nan"))
    torch.save(state, tmp_path / "ten.pth")
    assert len(load_weights(SmallCnn(num_classes=4), tmp_path / "ten.pth")) == 1


def test_a_file_that_can_not_be_read_now_is_not_called_damaged(tmp_path, monkeypatch):
    torch.save(small_unet().state_dict(), tmp_path / "far.pth")

    def stale(*_, **__):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(torch, "load", stale)
    with pytest.raises(ConfigError, match=r"far\.pth: cannot read: stale file handle"):
        load_weights(small_unet(), tmp_path / "far.pth")
