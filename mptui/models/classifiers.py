"""torchvision's classifiers."""

from typing import Any

import torchvision
from torch import nn

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


def _special_arguments(name: str, side: int) -> dict[str, Any]:
    if name in _WITH_AUXILIARY_HEADS:
        # a network in training has one output here, as it has in evaluation
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit"):
        return {"image_size": side}
    return {"input_size": (side, side)} if name == "maxvit_t" else {}
