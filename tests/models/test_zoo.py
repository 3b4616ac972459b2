from functools import partial

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.weights import head_names
from mptui.models.zoo import build, parameter_count
from mptui.registry.models import MODELS
from mptui.registry.tasks import CLASSIFICATION

CLASSES = 7
slow = partial(pytest.param, marks=pytest.mark.slow)
UNETS = {"unet", "diffusion_unet"}
LARGE = {"densenet", "efficientnet", "maxvit", "mnasnet", "mobilenet", "regnet", "resnext", "wide"}
"""Families whose first network takes long to build."""


class WithoutMemory(TorchFunctionMode):
    """Makes weights without values; computations of a network on its own shape are unaffected."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in {torch.empty, torch.zeros, torch.ones} and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def classifier(name, side=64):
    return build(ModelConfig(name=name), num_classes=CLASSES, task="classification", side=side)


def test_the_names_are_the_classifiers_and_the_unets():
    assert {"resnet18", "resnet50", "vit_b_16", "convnext_tiny", "swin_t", *UNETS} <= set(MODELS)
    assert not {"fcn_resnet50", "fasterrcnn_resnet50_fpn", "raft_large", "r3d_18"} & set(MODELS)


def classifiers():
    """All classifiers; but for the first of most families, among the slow tests: some have 600 layers."""
    families: set[str] = set()
    for name in MODELS:
        if MODELS[name].task == CLASSIFICATION:
            family = name.partition("_")[0].rstrip("0123456789")
            yield slow(name) if family in families | LARGE else name
            families.add(family)


@pytest.mark.parametrize("name", [*classifiers()])
def test_every_classifier_builds_with_the_classes_of_the_data(name):
    with WithoutMemory():
        model = classifier(name, side=224)
    (name,) = head_names(model)
    head = model.get_submodule(name)
    assert CLASSES in {getattr(head, "out_features", None), getattr(head, "out_channels", None)}


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("resnet18", 32),
        ("mobilenet_v3_small", 32),
        ("squeezenet1_1", 33),
        ("googlenet", 33),
    ],
)
def test_a_classifier_trains_with_one_output(name, side):
    with torch.device("meta"):
        logits = classifier(name, side).train()(torch.zeros(2, 3, side, side))
    assert logits.shape == (2, CLASSES)


@pytest.mark.parametrize(
    "name",
    ["alexnet", slow("convnext_tiny"), slow("googlenet"), slow("inception_v3"), "squeezenet1_0", "vgg11"],
)
def test_the_smallest_size_is_the_smallest_that_works(name):
    def passes(side):
        with torch.device("meta"):
            try:
                model = classifier(name, side)
            except ConfigError:
                return False
            model(torch.zeros(2, 3, side, side))
            return True

    smallest = next(side for side in range(8, 80) if passes(side))
    with torch.device("meta"), pytest.raises(RuntimeError):
        classifier(name, 80)(torch.zeros(2, 3, smallest - 1, smallest - 1))


@pytest.mark.parametrize(
    ("name", "side"),
    [
        slow("swin_t", 40),
        slow("swin_v2_t", 64),
        slow("maxvit_t", 224),
        ("vit_b_32", 64),
        slow("vit_h_14", 28),
    ],
)
def test_transformers_take_the_sizes_they_can(name, side):
    with torch.device("meta"):
        assert classifier(name, side)(torch.zeros(2, 3, side, side)).shape == (2, CLASSES)


REFUSED = [("inception_v3", 64, "75"), ("vit_b_16", 72, "64"), ("vit_b_32", 8, "32")]
REFUSED_LARGE = ("maxvit_t", 256, "224")


@pytest.mark.parametrize(("name", "side", "use"), [*REFUSED, REFUSED_LARGE])
def test_a_size_that_cannot_work_is_refused_with_one_that_may(name, side, use):
    with pytest.raises(ConfigError) as error:
        classifier(name, side)
    assert str(side) in error.value.message
    assert f"data.image_size={use}" in error.value.hint


@pytest.mark.parametrize(("name", "side", "use"), [*REFUSED, slow(*REFUSED_LARGE)])
def test_the_size_that_a_refusal_names_can_be_built(name, side, use):
    with torch.device("meta"):
        classifier(name, int(use))


def test_a_unet_follows_its_configuration():
    config = ModelConfig(name="unet", width=8, depth=2, up="bilinear", norm="group")
    model = build(config, num_classes=3, task="segmentation", side=32)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3, 32, 32)
    kinds = {type(module).__name__ for module in model.modules()}
    assert "GroupNorm" in kinds
    assert not {"BatchNorm2d", "ConvTranspose2d"} & kinds


def test_a_unet_too_deep_for_the_images_is_refused():
    with pytest.raises(ConfigError) as error:
        build(ModelConfig(name="unet", depth=5), num_classes=2, task="segmentation", side=31)
    assert "data.image_size=32" in error.value.hint


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(ConfigError) as error:
        classifier("ResNet-50")
    assert "'ResNet-50'" in error.value.message
    assert "resnet50" in error.value.hint


@pytest.mark.parametrize(
    ("name", "task", "use"),
    [
        ("resnet18", "segmentation", "unet"),
        ("unet", "classification", "resnet50"),
        ("unet", "diffusion", "diffusion_unet"),
        ("resnet18", "diffusion", "diffusion_unet"),
        ("diffusion_unet", "classification", "resnet50"),
        ("diffusion_unet", "segmentation", "unet"),
    ],
)
def test_a_network_for_another_task_is_refused(name, task, use):
    with pytest.raises(ConfigError) as error:
        build(ModelConfig(name=name), num_classes=3, task=task, side=64)
    assert f"--model {use}" in error.value.hint


def test_parameters_are_counted():
    with torch.device("meta"):
        model = build(ModelConfig(name="resnet50"), num_classes=1000, task="classification", side=224)
    assert parameter_count(model) == 25_557_032
