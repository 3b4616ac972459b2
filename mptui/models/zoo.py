"""The closed set of networks: torchvision's classifiers by their names there, and `unet`."""

import difflib
from typing import Any

import torchvision
from torch import nn

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.convolutions import mend_convolutions
from mptui.models.unet import UNet

_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


def names() -> list[str]:
    """Every name that `build` knows, in alphabetical order."""
    # The segmentation, detection and video networks live in submodules, which are left out here.
    classifiers = torchvision.models.list_models(module=torchvision.models)
    return sorted([*classifiers, "unet"])


def build(config: ModelConfig, *, num_classes: int, task: str, side: int) -> nn.Module:
    """Build a network with random weights, on torch's default device.

    Args:
        config: The name, and what a `unet` looks like.
        num_classes: Classes to tell apart.
        task: `classification` or `segmentation`: what the data asks for.
        side: Height and width of the images, in pixels.

    Raises:
        ConfigError: There is no such network, it does not fit the task, or it can't take images of `side`.
    """
    name = check(config, task, side)
    if name == "unet":
        return UNet(num_classes, width=config.width, depth=config.depth, up=config.up, norm=config.norm)
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=num_classes, **_special_arguments(name, side)
    )
    mend_convolutions(model)
    return model


def check(config: ModelConfig, task: str, side: int) -> str:
    """Check that `build` can build this, without building it; return the network's name.

    Raises:
        ConfigError: As `build`.
    """
    name = _known(config.name)
    _check_task(name, task)
    _check_side(name, side, config)
    return name


def parameter_count(model: nn.Module) -> int:
    """How many numbers `model` learns."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _known(name: str | None) -> str:
    if name is None:
        raise ConfigError(
            "model.name is not set", hint="Name a network, e.g. --model resnet50 or --model unet."
        )
    if name not in names():
        near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Try resnet50, or unet for masks."
        raise ConfigError(f"model.name: there is no network called {name!r}", hint=hint)
    return name


def _check_task(name: str, task: str) -> None:
    if name == "unet" and task == "classification":
        raise ConfigError(
            "model.name: unet gives every pixel a class, and this data has one class an image",
            hint="Use a classifier, e.g. --model resnet50, or data with a mask for each image.",
        )
    if name != "unet" and task == "segmentation":
        raise ConfigError(
            f"model.name: {name} gives an image one class, and this data has a mask for each image",
            hint="Use --model unet, or data with a folder for each class.",
        )


def _check_side(name: str, side: int, config: ModelConfig) -> None:
    smallest, multiple = _smallest_side(name, config), _side_multiple(name)
    if side < smallest:
        at_depth = f" at depth {config.depth}" if name == "unet" else ""
        raise ConfigError(
            f"data.image_size: {name}{at_depth} can't take images of {side} pixels",
            hint=f"Use --set data.image_size={smallest} or more, or another network.",
        )
    if side % multiple:
        nearest = max(1, round(side / multiple)) * multiple
        raise ConfigError(
            f"data.image_size: {name} needs a multiple of {multiple} pixels, not {side}",
            hint=f"Use --set data.image_size={nearest}, or another network.",
        )


def _smallest_side(name: str, config: ModelConfig) -> int:
    if name == "unet":
        return int(2**config.depth)
    if name.startswith("swin"):
        return 1  # torchvision names the size of its weights here; the network pads to any size
    if name.startswith(("vit", "maxvit")):
        return _side_multiple(name)
    smallest: int = torchvision.models.get_model_weights(name).DEFAULT.meta["min_size"][0]
    return smallest


def _side_multiple(name: str) -> int:
    if name.startswith("vit"):
        return int(name.rpartition("_")[2])  # vit_b_16: patches of 16 pixels
    return 224 if name == "maxvit_t" else 1  # maxvit: five halvings, and windows of 7 at each level


def _special_arguments(name: str, side: int) -> dict[str, Any]:
    if name in _WITH_AUXILIARY_HEADS:
        # A trained network has one output here, as it has in evaluation.
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit"):
        return {"image_size": side}
    return {"input_size": (side, side)} if name == "maxvit_t" else {}
