"""Published weights of torchvision: in the cache or missing, for other images and classes."""

from functools import partial

import pytest
import torch
import torchvision

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models import zoo
from mptui.models.weights import load_weights
from mptui.registry.tasks import CLASSIFICATION
from tests.models.published import load, own_caches, publish
from tests.toys.training import dry_run, trained

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch, tmp_path):
    own_caches(monkeypatch, tmp_path)


def pretrained(name):
    return ModelConfig(name=name, weights="pretrained")


def loaded(config, *, side=64, classes=1000):
    """Build and load as a run does: the network and the warnings."""
    model = zoo.build(config, num_classes=classes, task=CLASSIFICATION, side=side)
    return model, load(model, config, side)


def made(name, **settings):
    torch.manual_seed(1)
    return torchvision.models.get_model(name, weights=None, **settings)


def assert_same(model, other, *, but=()):
    own, theirs = model.state_dict(), other.state_dict()
    assert {name for name in own if not torch.equal(own[name], theirs[name])} == set(but)


def test_weights_are_taken_from_the_cache_of_torch_hub(tmp_path):
    config, source = pretrained("shufflenet_v2_x0_5"), made("shufflenet_v2_x0_5")
    place = publish(config, source.state_dict())
    assert place.parent == tmp_path / "torch" / "hub" / "checkpoints"
    model, warnings = loaded(config)
    assert warnings == []
    assert_same(model, source)


def test_a_head_for_other_classes_starts_from_random_weights_and_that_is_said():
    config, source = pretrained("shufflenet_v2_x0_5"), made("shufflenet_v2_x0_5")
    publish(config, source.state_dict())
    model, (warning,) = loaded(config, classes=3)
    assert "its head is for 1000 classes, not 3: fc starts from random weights" in warning
    assert torch.equal(model.conv5[0].weight, source.conv5[0].weight)


def test_without_file_and_network_the_file_is_named_and_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError) as error:
        zoo.weights_file(pretrained("resnet18"))
    place = tmp_path / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    assert f"{place} is missing, and can't be downloaded" in error.value.message
    assert "Connection refused" in error.value.message
    assert "curl -LO https://" in error.value.hint
    assert error.value.hint.endswith(f"copy resnet18-f37072fd.pth to {place}")


def test_weights_that_nobody_published_are_refused():
    with pytest.raises(ConfigError, match="no pretrained weights of diffusion_unet"):
        zoo.pretrained(pretrained("diffusion_unet"))


@pytest.mark.parametrize("side", [64, 224])
def test_positions_of_a_transformer_are_interpolated_to_the_images(side):
    def shallow(side):
        return torchvision.models.VisionTransformer(side, 32, 1, 2, hidden_dim=8, mlp_dim=8)

    config, source = pretrained("vit_b_32"), shallow(224)
    source.encoder.pos_embedding.data.normal_()
    publish(config, source.state_dict())
    model = shallow(side)
    assert load(model, config, side) == []
    positions = model.state_dict()["encoder.pos_embedding"]
    assert positions.shape[1] == (side // 32) ** 2 + 1
    assert torch.equal(positions[:, 0], source.state_dict()["encoder.pos_embedding"][:, 0])


def test_a_network_with_versions_of_its_layers_takes_weights_without_them(tmp_path):
    source = made("mnasnet0_5")
    torch.save(dict(source.state_dict()), tmp_path / "mnasnet.pth")
    model = made("mnasnet0_5", num_classes=1000)
    assert load_weights(model, tmp_path / "mnasnet.pth") == []
    assert_same(model, source)


def test_images_are_between_minus_1_and_1_for_networks_of_google_that_normalise_again():
    found = zoo.pretrained(pretrained("googlenet"))
    assert (found.mean, found.std) == ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.slow
def test_a_network_that_normalises_again_gets_images_that_are_normalised_once():
    config = pretrained("googlenet")
    source = made("googlenet", aux_logits=True, init_weights=False, transform_input=True).eval()
    publish(config, source.state_dict())
    model = made("googlenet", aux_logits=False, init_weights=False)
    assert load(model, config, 64) == []
    pixels = torch.rand(2, 3, 64, 64)
    usual = torchvision.models.GoogLeNet_Weights.DEFAULT.transforms()
    found = zoo.pretrained(config)
    ours, theirs = (
        (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        for mean, std in ((found.mean, found.std), (usual.mean, usual.std))
    )
    torch.testing.assert_close(model.eval()(ours), source(theirs), rtol=1e-3, atol=1e-3)


def test_the_images_are_those_of_the_weights_where_nothing_else_is_asked_for(capsys):
    shown = dry_run(capsys, "--model", "efficientnet_v2_l", "--weights", "pretrained", "--device", "cpu")
    told = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert told["weights"].endswith("# --weights")
    assert told["image_size"].startswith("image_size = 480 ")
    assert told["interpolation"].startswith('interpolation = "bicubic" ')
    assert told["crop_pct"].startswith("crop_pct = 1.0 ")
    for key in ("image_size", "interpolation", "crop_pct", "mean", "std"):
        assert told[key].endswith("# weights efficientnet_v2_l IMAGENET1K_V1")
    assert shown.partition("mean = [")[2].splitlines()[1].strip() == "0.5,"
    shown = dry_run(
        capsys, "--model", "efficientnet_v2_l", "--weights", "pretrained", "--device", "cpu",
        "--set", "data.image_size=96", "--set", "data.mean=[0.1,0.2,0.3]",
    )  # fmt: skip
    told = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert told["image_size"].startswith("image_size = 96 ")
    assert told["mean"].endswith("# --set")


def test_a_resumed_run_needs_neither_the_cache_nor_a_network(tmp_path):
    settings = {"model.name": "squeezenet1_1", "model.weights": "pretrained"}
    place = publish(pretrained("squeezenet1_1"), made("squeezenet1_1").state_dict())
    trained(tmp_path / "run", settings, epochs=1)
    place.unlink()
    trained(tmp_path / "run", settings, epochs=2, resume=True)


FACTS = ("image_size", "interpolation", "crop_pct", "mean", "std")


def test_a_file_for_a_named_network_gets_the_images_that_its_published_weights_have(capsys, tmp_path):
    file = tmp_path / "weights.pth"
    torch.save({"any": torch.zeros(1)}, file)
    flags = "--model", "efficientnet_v2_l", "--device", "cpu", "--weights"
    of_word, of_file = (
        {line.partition(" = ")[0]: line.partition("#") for line in dry_run(capsys, *flags, each).splitlines()}
        for each in ("pretrained", str(file))
    )
    for key in FACTS:
        assert of_file[key][0].rstrip() == of_word[key][0].rstrip()
        assert "published weights, efficientnet_v2_l IMAGENET1K_V1" in of_file[key][2]


def test_a_file_of_a_run_gets_the_images_of_that_run(capsys, tmp_path):
    run = tmp_path / "runs" / "first"
    file = run / "checkpoints" / "best" / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.touch()
    (run / "run.toml").write_text(
        "[data]\nimage_size = 96\nmean = [0.1, 0.2, 0.3]\nstd = [0.4, 0.5, 0.6]\n"
        'interpolation = "bicubic"\ncrop_pct = 0.9\n'
    )
    shown = dry_run(capsys, "--model", "resnet18", "--device", "cpu", "--weights", str(file))
    told = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert told["image_size"].startswith("image_size = 96 ")
    assert told["crop_pct"].startswith("crop_pct = 0.9 ")
    assert all("the run first" in told[key] for key in FACTS)


@pytest.mark.parametrize(
    "name", [slow("efficientnet_b0"), "mnasnet0_5", slow("resnet18"), slow("timm/tf_efficientnet_b0")]
)
def test_a_new_head_begins_near_chance(name):
    """Those after TensorFlow draw their heads by the number of classes: 17 times chance for two."""
    torch.manual_seed(0)
    model = zoo.build(ModelConfig(name=name), num_classes=2, task=CLASSIFICATION, side=64)
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 3, 64, 64)), torch.arange(16) % 2)
    assert float(loss.detach()) < 1.5 * 0.693


def test_a_head_of_usual_size_is_as_it_was_drawn():
    torch.manual_seed(0)
    ours = zoo.build(ModelConfig(name="shufflenet_v2_x0_5"), num_classes=2, task=CLASSIFICATION, side=64)
    torch.manual_seed(0)
    theirs = torchvision.models.get_model("shufflenet_v2_x0_5", weights=None, num_classes=2)
    assert_same(ours, theirs)
