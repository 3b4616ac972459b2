"""timm's image classification networks, and their published weights."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import nn

from mptui.errors import ConfigError
from mptui.models.hub import hugging_face_file, torch_hub_file
from mptui.models.pretrained import Pretrained
from mptui.models.weights import other_network, read_state
from mptui.registry.timm_names import PREFIX
from mptui.text import clean

_SAFE_FILE = "model.safetensors"


def build_timm(name: str, num_classes: int, side: int) -> nn.Module:
    """Build a network of timm with random weights.

    Args:
        name: Its name, with or without one of its weights: `timm/resnet50`, `timm/resnet50.a1_in1k`.
        num_classes: Outputs of the network.
        side: Height and width of the images in pixels.

    Raises:
        ConfigError: It has no such weights, or can't take images of this size.
    """
    config = _config(name)
    try:
        model: nn.Module = timm.create_model(_bare(name), num_classes=num_classes, **_size(config, side))
        shape = _output_shape(model, side)
    except Exception as error:  # each network has its own way to say that a size does not suit
        raise ConfigError(
            f"data.image_size: {name} can't take images of {side} pixels: {_reason(error)}",
            hint=f"Use --set data.image_size={config.input_size[-1]}, or another network.",
        ) from error
    if shape != (1, num_classes):
        raise ConfigError(
            f"model.name: {name} is no classifier: its output is of shape {shape}",
            hint="Use another network.",
        )
    return model


def pretrained_timm(name: str) -> Pretrained | None:
    """Return the weights of a network of timm: those of its name, else its default; None without any."""
    config = _config(name)
    if not config.has_weights:
        return None
    return Pretrained(
        name=f"timm/{config.architecture}.{config.tag}" if config.tag else name,
        file=hugging_face_file(config.hf_hub_id, config.hf_hub_filename or _SAFE_FILE)
        if config.hf_hub_id
        else torch_hub_file(config.url),
        mean=tuple(config.mean),
        std=tuple(config.std),
        side=config.input_size[-1],
        read=partial(_weights, name),
    )


def _weights(name: str, path: Path, side: int) -> Mapping[str, torch.Tensor]:
    """Read published weights by the names of the network; position embeddings are resized to `side`.

    timm adapts older files, and files of other projects, as it loads them into a network.
    """
    state = dict(read_state(path))
    try:
        network = timm.create_model(
            _bare(name),
            pretrained=True,
            pretrained_cfg_overlay={"state_dict": state},
            **_size(_config(name), side),
        )
    except Exception as error:  # whatever the conversion of another network's weights comes across
        raise other_network(path, [_reason(error)]) from error
    weights: dict[str, torch.Tensor] = network.state_dict()
    return weights


def _config(name: str) -> Any:  # noqa: ANN401 - of timm, which has no types
    """Return timm's `PretrainedCfg` of a network.

    Raises:
        ConfigError: It has no such weights.
    """
    try:
        return get_pretrained_cfg(_bare(name), allow_unregistered=False)
    except RuntimeError as error:
        raise ConfigError(
            f"model.name: {name}: {_reason(error)}",
            hint=f"Use {name.partition('.')[0]}, or other weights of it.",
        ) from error


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)


def _size(config: Any, side: int) -> dict[str, int]:  # noqa: ANN401
    """Return the argument of networks that are built for one size."""
    return {"img_size": side} if config.fixed_input_size else {}


def _output_shape(model: nn.Module, side: int) -> tuple[int, ...]:
    """Return the shape of the output for one image; fails if the network can't take it."""
    model.eval()  # statistics of BatchNorm, and torch's random numbers, stay as they are
    with torch.no_grad():
        shape = tuple(model(torch.zeros(1, 3, side, side)).shape)
    model.train()
    return shape


def _reason(error: Exception) -> str:
    return clean(str(error).strip().partition("\n")[0], limit=200) or type(error).__name__
