"""timm's networks: their names, their training step, their published weights."""

import subprocess
import sys

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from mptui.config.resolve import resolve
from mptui.config.schema import ModelConfig, RunConfig
from mptui.engine.memory.ledger import footprint
from mptui.errors import ConfigError
from mptui.models import zoo
from mptui.registry import models, names
from mptui.registry.tasks import CLASSIFICATION
from mptui.runs.store.directory import create_run
from mptui.tui.selection import fits
from tests.hardware.machines import H200
from tests.models.published import load, own_caches
from tests.toys.training import dry_run, trained

CLASSES = 7


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch, tmp_path):
    own_caches(monkeypatch, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def built(name, side=64, **settings):
    config = ModelConfig(name=f"timm/{name}", **settings)
    return zoo.build(config, num_classes=CLASSES, task=CLASSIFICATION, side=side)


def published(name, state=None, **settings):
    """Save random weights as the published ones; return the configuration and their network."""
    torch.manual_seed(1)
    source = timm.create_model(name, **settings)
    config = ModelConfig(name=f"timm/{name}", weights="pretrained")
    place = zoo.pretrained(config).file.place
    place.parent.mkdir(parents=True)
    save_file(state or source.state_dict(), place)
    return config, source


def test_the_names_are_those_that_timm_registers():
    assert [f"timm/{name}" for name in sorted(timm.list_models())] == sorted(names.timm_names())


def test_names_are_known_and_completed_without_importing_torch_or_timm():
    program = (
        "import sys\n"
        "from mptui.cli.completion import models\n"
        "from mptui.registry.models import find_model\n"
        "print(models('timm/convnext_at'), find_model('timm/resnet50.a1_in1k') is not None,\n"
        "      find_model('timm/nothing'), {'torch', 'timm'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert (
        shown
        == "['timm/convnext_atto', 'timm/convnext_atto_ols', 'timm/convnext_atto_rms'] True None set()\n"
    )


@pytest.mark.parametrize("start", ["", "res"])
def test_names_of_timm_are_offered_only_where_they_are_typed(start):
    assert not [name for name in models.model_names(start) if name.startswith("timm/")]
    assert "timm/resnet50" in models.model_names("t")


def test_a_near_name_of_timm_is_suggested():
    with pytest.raises(ConfigError) as error:
        built("convnext_attto")
    assert "timm/convnext_atto" in error.value.hint


def test_without_timm_the_command_that_installs_it_is_given(monkeypatch):
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    names.timm_names.cache_clear()
    try:
        with pytest.raises(ConfigError) as error:
            built("resnet18")
    finally:
        names.timm_names.cache_clear()
    assert "timm/resnet18 needs timm, which is not installed" in error.value.message
    assert "pip install 'mptui[timm]'" in error.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "test_byobnet", "test_coatnet", "test_convnext", "test_efficientnet", "test_mambaout", "test_maxvit",
        "test_nfnet", "test_resnet", "test_vit", "test_vit_relpos", "test_efficientnet_evos", "cspnext_tiny",
        "lcnet_035", "convit_tiny", "edgenext_xx_small", "starnet_s050", "mobilevitv2_050",
        "fasternet_t0", "cpubone_nano", "efficientvit_b0", "regnetx_002", "shvit_s1", "cs3darknet_s",
    ],
)  # fmt: skip
def test_a_network_of_each_family_takes_a_training_step(name):
    model = built(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.tensor([1, 5]))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_a_size_that_does_not_suit_is_refused_with_one_that_does():
    with torch.device("meta"), pytest.raises(ConfigError) as error:
        built("vgg11", side=16)
    assert "timm/vgg11 can't take images of 16 pixels: " in error.value.message
    assert "data.image_size=224" in error.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm/test_nfnet", "timm/test_mambaout"])
def test_their_memory_is_estimated(name):
    config = RunConfig.model_validate({"model": {"name": name}, "data": {"image_size": 64}})
    weights = sum(
        p.nbytes for p in timm.create_model(name.removeprefix("timm/"), num_classes=10).parameters()
    )
    assert footprint(config, CLASSIFICATION, device="cpu", precision="fp32", classes=10).gradients == weights


def test_a_network_whose_memory_can_not_be_estimated_can_be_started():
    resolved = resolve(
        None, task=None, flags={"model.name": ("--model", "timm/regnetx_002")}, sets=(), environ={}
    )
    assert fits({"own": resolved}, H200, 1, None, wanted=lambda: True) == {}
    assert built("regnetx_002") is not None


def test_weights_that_timm_does_not_have_are_refused():
    with pytest.raises(ConfigError, match=r"timm/resnet18\.a9: Invalid pretrained tag"):
        built("resnet18.a9")
    with pytest.raises(ConfigError, match="no pretrained weights of timm/resnet50t"):
        zoo.pretrained(ModelConfig(name="timm/resnet50t", weights="pretrained"))


def test_published_weights_come_from_the_cache_of_the_hub_with_a_head_of_our_own(tmp_path):
    config, source = published("test_resnet")
    model = built("test_resnet", weights="pretrained")
    (warning,) = load(model, config, 64)
    assert "its head is for 1000 classes, not 7: fc starts from random weights" in warning
    own, theirs = model.state_dict(), source.state_dict()
    assert {name for name in own if not torch.equal(own[name], theirs[name])} == {"fc.weight", "fc.bias"}
    with_all = zoo.build(config, num_classes=1000, task=CLASSIFICATION, side=64)
    assert load(with_all, config, 64) == []
    assert torch.equal(with_all.state_dict()["fc.weight"], theirs["fc.weight"])


def test_positions_are_interpolated_to_the_images():
    config, source = published("test_vit")
    model = built("test_vit", side=64)
    load(model, config, 64)
    assert model.pos_embed.shape[1] < source.pos_embed.shape[1]
    assert torch.equal(model.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight)


def test_weights_of_another_network_are_refused():
    config, _ = published("test_resnet", {"conv.weight": torch.ones(3)})
    with pytest.raises(ConfigError, match="these are the weights of another network"):
        load(built("test_resnet"), config, 64)


def test_without_file_and_network_the_file_is_named_and_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError) as error:
        zoo.weights_file(ModelConfig(name="timm/resnet34.a1_in1k", weights="pretrained"))
    place = tmp_path / "hf/models--timm--resnet34.a1_in1k/snapshots/main/model.safetensors"
    assert f"{place} is missing, and can't be downloaded" in error.value.message
    assert "`hf download timm/resnet34.a1_in1k model.safetensors --local-dir .`" in error.value.hint
    assert error.value.hint.endswith(f"copy model.safetensors to {place}")


def test_the_newest_revision_in_the_cache_is_taken(tmp_path):
    folder = tmp_path / "hf/models--timm--resnet34.a1_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0123abc")
    place = folder / "snapshots/0123abc/model.safetensors"
    place.parent.mkdir(parents=True)
    place.touch()
    assert zoo.weights_file(ModelConfig(name="timm/resnet34.a1_in1k", weights="pretrained")) == place


def test_the_images_are_those_of_the_weights(capsys):
    shown = dry_run(
        capsys, "--model", "timm/inception_v4.tf_in1k", "--weights", "pretrained", "--device", "cpu"
    )
    told = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert told["image_size"].startswith("image_size = 299 ")
    assert told["image_size"].endswith("# weights timm/inception_v4.tf_in1k")
    assert shown.partition("mean = [")[2].splitlines()[1].strip() == "0.5,"


def test_a_run_directory_has_no_folder_of_the_name(tmp_path):
    run = create_run(tmp_path, "stable", "timm/resnet18", None)
    assert run.parent == tmp_path
    assert run.name.endswith("-stable-timm-resnet18")


@pytest.mark.slow
def test_a_run_is_resumed_without_the_cache(tmp_path):
    config, _ = published("test_resnet")
    settings = {"model.name": "timm/test_resnet", "model.weights": "pretrained"}
    trained(tmp_path / "run", settings, epochs=1)
    zoo.pretrained(config).file.place.unlink()
    trained(tmp_path / "run", settings, epochs=2, resume=True)
