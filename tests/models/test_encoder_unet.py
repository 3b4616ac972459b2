"""The U-Net with a network of timm as its encoder."""

from functools import partial

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models import zoo
from mptui.models.weights import head_names
from mptui.registry.tasks import SEGMENTATION
from tests.models.published import load, own_caches
from tests.toys.training import dry_run, trained

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch, tmp_path):
    own_caches(monkeypatch, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))


def built(encoder, side=64, **settings):
    config = ModelConfig(name="unet", encoder=encoder, width=16, **settings)
    return zoo.build(config, num_classes=3, task=SEGMENTATION, side=side)


@pytest.mark.parametrize(
    ("name", "up", "side"),
    [
        slow("test_resnet", "transposed", 64),
        slow("test_resnet", "transposed", 75),
        slow("test_convnext", "bilinear", 64),
        ("test_convnext", "bilinear", 75),
        ("test_mambaout", "transposed", 64),
        slow("test_mambaout", "transposed", 75),
    ],
)
def test_the_logits_have_the_size_of_the_image_and_every_weight_a_gradient(name, up, side):
    model = built(f"timm/{name}", side, up=up)
    logits = model(torch.randn(2, 3, side, side))
    assert logits.shape == (2, 3, side, side)
    logits.square().mean().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []
    assert head_names(model) == ["head"]


@pytest.mark.parametrize(
    ("encoder", "told", "hint"),
    [
        ("timm/test_vit", "timm/test_vit has no features at a half", "timm/resnet34"),
        ("timm/resnet3", "model.encoder: no network called 'timm/resnet3'", "timm/resnet34"),
        ("resnet34", "model.encoder: resnet34 is no network of timm", "use timm/resnet34"),
    ],
)
def test_what_can_not_be_an_encoder_is_refused(encoder, told, hint):
    with pytest.raises(ConfigError) as error:
        built(encoder)
    assert told in error.value.message
    assert hint in error.value.hint


def test_an_encoder_for_another_network_is_refused(capsys):
    with pytest.raises(ConfigError, match=r"model\.encoder = .* acts with unet; this run has resnet50"):
        dry_run(capsys, "--model", "resnet50", "--set", "model.encoder=timm/resnet18", "--device", "cpu")


def published():
    """Return a configuration, the network whose weights are published for it, and their file."""
    torch.manual_seed(1)
    source = timm.create_model("test_resnet")
    config = ModelConfig(name="unet", encoder="timm/test_resnet", weights="pretrained")
    place = zoo.pretrained(config).file.place
    place.parent.mkdir(parents=True)
    save_file(source.state_dict(), place)
    return config, source, place


def test_the_encoder_starts_from_published_weights():
    config, source, _ = published()
    model = zoo.build(config, num_classes=3, task=SEGMENTATION, side=64)
    assert load(model, config, 64) == []
    kept = model.get_submodule("encoder").state_dict()
    assert torch.equal(kept["layer4.0.conv1.weight"], source.state_dict()["layer4.0.conv1.weight"])
    assert all(torch.equal(kept[name], source.state_dict()[name]) for name in kept)


@pytest.mark.slow
def test_a_run_from_published_weights_is_resumed_without_them(tmp_path):
    config, _, place = published()
    settings = {f"model.{key}": getattr(config, key) for key in ("name", "encoder", "weights")} | {
        "model.width": 8
    }
    trained(tmp_path / "run", settings, epochs=1)
    place.unlink()
    trained(tmp_path / "run", settings, epochs=2, resume=True)


def test_images_are_normalised_for_the_weights_and_of_the_size_of_the_task(capsys):
    shown = dry_run(
        capsys, "--model", "unet", "--weights", "pretrained", "--device", "cpu",
        "--set", "model.encoder=timm/inception_resnet_v2.tf_in1k",
    )  # fmt: skip
    told = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert told["image_size"].startswith("image_size = 128 ")
    assert told["mean"].endswith("# weights timm/inception_resnet_v2.tf_in1k")
    assert shown.partition("mean = [")[2].splitlines()[1].strip() == "0.5,"


def test_weights_of_another_network_are_refused(tmp_path):
    config = ModelConfig(name="unet", encoder="timm/test_resnet", weights="pretrained")
    place = zoo.pretrained(config).file.place
    place.parent.mkdir(parents=True)
    save_file({"conv.weight": torch.ones(3)}, place)
    with pytest.raises(ConfigError, match="these are the weights of another network"):
        load(zoo.build(config, num_classes=3, task=SEGMENTATION, side=64), config, 64)
