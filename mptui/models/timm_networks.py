"""timm's image classification networks, and their published weights."""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from mptui.errors import ConfigError
from mptui.models.hub import hugging_face_file, torch_hub_file
from mptui.models.pretrained import Pretrained
from mptui.models.unets.encoder_unet import EncoderUNet
from mptui.models.unets.unet import Norm, Up
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
    model, output = _tried(name, side, num_classes=num_classes)
    if (shape := tuple(output.shape)) != (1, num_classes):
        raise ConfigError(
            f"model.name: {name} is no classifier: its output is of shape {shape}",
            hint="Use another network.",
        )
    return model


def build_encoder_unet(
    name: str, num_classes: int, side: int, *, width: int, up: Up, norm: Norm
) -> EncoderUNet:
    """Build a U-Net whose encoder is a network of timm, with random weights.

    Args:
        name: Name of the network, as of `build_timm`.
        num_classes: Classes of pixels.
        side: Height and width of the images in pixels.
        width: Channels of the decoder at a quarter of the resolution.
        up: Upsampling in the decoder.
        norm: Normalisation in the decoder.

    Raises:
        ConfigError: It has no such weights, has no features of several resolutions, or can't take images of
            this size.
    """
    encoder, _ = _tried(name, side, features_only=True)
    info: Any = encoder.feature_info
    reductions: list[int] = info.reduction()
    smaller = all(low < high for low, high in pairwise(reductions))
    if len(reductions) < 2 or not smaller or any(each.bit_count() != 1 for each in reductions):
        raise ConfigError(
            f"model.encoder: {name} has no features at a half, a quarter, … of the resolution",
            hint="Use another encoder, e.g. timm/resnet34 or timm/convnext_tiny.",
        )
    nhwc = getattr(encoder, "output_fmt", None) == "NHWC"
    return EncoderUNet(
        encoder, info.channels(), reductions, num_classes, nhwc=nhwc, width=width, up=up, norm=norm
    )


def _tried(name: str, side: int, **settings: Any) -> tuple[nn.Module, Any]:  # noqa: ANN401 - of timm
    """Build a network, and run it once on an image of `side` pixels; return it and its output."""
    config = _config(name)
    try:
        model: nn.Module = timm.create_model(_bare(name), **settings, **_size(config, side))
        return model, _output(model, side)
    except DynamicOutputShapeException:  # says nothing of the network: its memory is being estimated
        raise
    except Exception as error:  # each network has its own way to say that a size does not suit
        raise ConfigError(
            f"data.image_size: {name} can't take images of {side} pixels: {_reason(error)}",
            hint=f"Use --set data.image_size={config.input_size[-1]}, or another network.",
        ) from error


def pretrained_timm(name: str, *, part: str = "") -> Pretrained | None:
    """Return the weights of a network of timm: those of its name, else its default; None without any.

    Args:
        name: Name of the network.
        part: Name of the module that has the features of the network alone; "": the network is the whole one.
    """
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
        side=None if part else config.input_size[-1],
        interpolation="bilinear" if config.interpolation == "bilinear" else "bicubic",
        crop_pct=min(config.crop_pct, 1.0),  # a few have more: images with a border
        read=partial(_weights, name, features_only=bool(part)),
        part=part,
    )


def _weights(name: str, path: Path, side: int, *, features_only: bool) -> Mapping[str, torch.Tensor]:
    """Read published weights by the names of the network; position embeddings are resized to `side`.

    timm adapts older files, and files of other projects, as it loads them into a network.
    """
    overlay = {"state_dict": dict(read_state(path))}
    load = partial(
        timm.create_model,
        _bare(name),
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        **_size(_config(name), side),
    )
    try:
        network = load()
        if features_only:  # takes any weights: those that it lacks would stay random
            network = load(features_only=True)
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


def _output(model: nn.Module, side: int) -> Any:  # noqa: ANN401
    """Return the output for one image; fails if the network can't take it."""
    model.eval()  # statistics of BatchNorm, and torch's random numbers, stay as they are
    with torch.no_grad():
        output = model(torch.zeros(1, 3, side, side))
    model.train()
    return output


def _reason(error: Exception) -> str:
    return clean(str(error).strip().partition("\n")[0], limit=200) or type(error).__name__
