"""The closed set of networks: torchvision's classifiers by their names there, `unet` and `diffusion_unet`."""

import difflib
from typing import Any

import torchvision
from torch import nn

from mptui.config.merge import task_of_model
from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.convolutions import mend_convolutions
from mptui.models.diffusion_unet import DiffusionUNet
from mptui.models.unet import UNet

_WITH_DEPTH = frozenset({"unet", "diffusion_unet"})
_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


def names() -> list[str]:
    """Every name that `build` knows, in alphabetical order."""
    # The segmentation, detection and video networks live in submodules, which are left out here.
    classifiers = torchvision.models.list_models(module=torchvision.models)
    return sorted([*classifiers, "unet", "diffusion_unet"])


def build(config: ModelConfig, *, num_classes: int, task: str, side: int) -> nn.Module:
    """Build a network with random weights, on torch's default device.

    Args:
        config: The name, and what a `unet` or `diffusion_unet` looks like.
        num_classes: Classes to tell apart.
        task: `classification`, `segmentation` or `diffusion`: what the data asks for.
        side: Height and width of the images, in pixels.

    Raises:
        ConfigError: There is no such network, it does not fit the task, or it can't take images of `side`.
    """
    name = check(config, task, side)
    if name == "unet":
        return UNet(num_classes, width=config.width, depth=config.depth, up=config.up, norm=config.norm)
    model: nn.Module
    if name == "diffusion_unet":
        model = DiffusionUNet(width=config.width, depth=config.depth)
    else:
        model = torchvision.models.get_model(
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
    if name == "diffusion_unet" and task != "diffusion":
        raise ConfigError(
            f"model.name: {name} learns to make images, and this run is one of {task}",
            hint="Use --model unet for images with masks, or a classifier, e.g. --model resnet50.",
        )
    if name == "unet" and task == "classification":
        raise ConfigError(
            "model.name: unet gives every pixel a class, and this data has one class an image",
            hint="Use a classifier, e.g. --model resnet50, or data with a mask for each image.",
        )
    if task_of_model(name) != "diffusion" and task == "diffusion":
        raise ConfigError(
            f"model.name: {name} does not make images, and this data is images alone",
            hint="Use --model diffusion_unet, or data with a folder for each class.",
        )
    if name != "unet" and task == "segmentation":
        raise ConfigError(
            f"model.name: {name} gives an image one class, and this data has a mask for each image",
            hint="Use --model unet, or data with a folder for each class.",
        )


def _check_side(name: str, side: int, config: ModelConfig) -> None:
    smallest, multiple = _smallest_side(name, config), _side_multiple(name, config)
    if side < smallest:
        at_depth = f" at depth {config.depth}" if name in _WITH_DEPTH else ""
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
    if name in _WITH_DEPTH:
        return int(2**config.depth)
    if name.startswith("swin"):
        return 1  # torchvision names the size of its weights here; the network pads to any size
    if name.startswith(("vit", "maxvit")):
        return _side_multiple(name, config)
    smallest: int = torchvision.models.get_model_weights(name).DEFAULT.meta["min_size"][0]
    return smallest


def _side_multiple(name: str, config: ModelConfig) -> int:
    if name == "diffusion_unet":
        return int(2**config.depth)
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
