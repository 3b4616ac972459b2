"""torchvision's classifiers."""

from typing import Any

import torchvision
from torch import nn
from torchvision.transforms import InterpolationMode

from mptui.models.hub import torch_hub_file
from mptui.models.pretrained import Pretrained
from mptui.models.weights import read_state

_WITH_AUXILIARY_HEADS = frozenset({"googlenet", "inception_v3"})


def build_classifier(name: str, num_classes: int, side: int) -> nn.Module:
    """Build a classifier of torchvision, called `name` there, with random weights.

    Args:
        name: One of `torchvision.models.list_models(module=torchvision.models)`.
        num_classes: Outputs of the network.
        side: Height and width of the images in pixels.
    """
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=num_classes, **_special_arguments(name, side)
    )
    return model


def pretrained_classifier(name: str) -> Pretrained:
    """Return the weights of a classifier of torchvision that it names as the default: its most accurate."""
    weights = torchvision.models.get_model_weights(name).DEFAULT
    images = weights.transforms()
    # those with auxiliary heads normalise images once more, by ImageNet's values: together, to -1..1
    half = (0.5, 0.5, 0.5) if name in _WITH_AUXILIARY_HEADS else None
    return Pretrained(
        name=f"{name} {weights.name}",
        file=torch_hub_file(weights.url),
        mean=half or tuple(images.mean),
        std=half or tuple(images.std),
        side=images.crop_size[0],
        interpolation="bicubic" if images.interpolation is InterpolationMode.BICUBIC else "bilinear",
        crop_pct=images.crop_size[0] / images.resize_size[0],
        read=lambda path, side: read_state(path),
    )


def _special_arguments(name: str, side: int) -> dict[str, Any]:
    if name in _WITH_AUXILIARY_HEADS:
        # a network in training has one output here, as it has in evaluation
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit"):
        return {"image_size": side}
    return {"input_size": (side, side)} if name == "maxvit_t" else {}
