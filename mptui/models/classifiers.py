"""Networks of classes: torchvision's, with the published weights of theirs, and a person's own."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.transforms import InterpolationMode

from mptui.errors import ConfigError
from mptui.models.unet import EncoderUNet, Norm, Up
from mptui.models.weights import other_network, read_state
from mptui.registry import own_code
from mptui.registry.names import PREFIX, Interpolation
from mptui.text import clean
from mptui.torch_private import DynamicOutputShapeException

# Files of published weights, in the caches that all programs share
# -----------------------------------------------------------------

_HASH = re.compile(r"-([0-9a-f]{8,})\.")
"""The start of a file's SHA-256 in its name."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a hub.

    Attributes:
        place: Where the cache has it, or would have it.
        fetch: Downloads it into the cache; returns its path. May raise nearly anything.
        command: Downloads it elsewhere.
        to_copy: What to copy from there to here.
    """

    place: Path
    fetch: Callable[[], Path]
    command: str
    to_copy: str

    @property
    def cached(self) -> bool:
        """Whether it is there."""
        return self.place.is_file()

    def path(self) -> Path:
        """Return the path of the file, which is downloaded if it is not in the cache.

        Raises:
            ConfigError: It can't be downloaded.
        """
        if self.cached:
            return self.place
        try:
            return self.fetch()
        except Exception as error:  # of the network, the hub, the disk
            reason = clean(str(error).strip().partition("\n")[0], limit=120)
            raise ConfigError(
                f"model.weights = pretrained: {self.place} is missing, and can't be downloaded: "
                f"{reason or type(error).__name__}",
                hint=f"with a network: `{self.command}`; then copy {self.to_copy} to {self.place}",
            ) from error


def torch_hub_file(url: str) -> HubFile:
    """Return the file at `url`, in the cache of torch.hub (`$TORCH_HOME/hub/checkpoints`)."""
    import torch

    name = url.rpartition("/")[2]
    place = Path(torch.hub.get_dir()) / "checkpoints" / name

    def fetch() -> Path:
        place.parent.mkdir(parents=True, exist_ok=True)
        known = _HASH.search(name)
        torch.hub.download_url_to_file(url, str(place), known and known[1], progress=False)
        return place

    return HubFile(place, fetch, f"curl -LO {url}", name)


def hugging_face_file(repository: str, name: str) -> HubFile:
    """Return a file of a repository of the Hugging Face hub, in its cache (`$HF_HOME/hub`)."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    newest = folder / "refs" / "main"
    revision = newest.read_text().strip() if newest.is_file() else "main"
    place = folder / "snapshots" / revision / name

    def fetch() -> Path:
        disable_progress_bars()  # they would be drawn over the screen
        return Path(hf_hub_download(repository, name))

    return HubFile(place, fetch, f"hf download {repository} {name} --local-dir .", name)


# A network of the person's own
# -----------------------------


def build_own(name: str, num_classes: int) -> nn.Module:
    """Build the network that `name` makes.

    Args:
        name: `package.module:function`: called as `function(num_classes=...)`; a class of networks is one.
        num_classes: Number of classes.

    Raises:
        ConfigError: There is no such function, or it returns something else.
        Exception: Whatever the person's code raises.
    """
    make = own_code.load(name)
    if not callable(make):
        raise ConfigError(f"{name} is no function", hint="write one: def make(num_classes): return NETWORK")
    model = own_code.call(name, make, num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{name} returned {type(model).__name__}, not a network",
            hint="return a torch.nn.Module",
        )
    return model


# Published weights of a network: their file, and the images that they were trained on
# ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """Published weights.

    Attributes:
        name: Their name, e.g. `resnet50 IMAGENET1K_V2`.
        file: Their file.
        mean: Mean of each channel of their images, of pixels in 0..1.
        std: Standard deviation of each channel.
        side: Height and width of these in pixels; None: of no importance.
        interpolation: How they were resampled.
        crop_pct: Fraction of the shorter side in the centre crop that they are validated with.
        read: Called with the path of the file and the side of the images of a run; returns the weights by the
            names of the network.
        part: Name of the module of the network that they are for; "": of all of it.
    """

    name: str
    file: HubFile
    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int | None
    interpolation: Interpolation
    crop_pct: float
    read: Callable[[Path, int], Mapping[str, torch.Tensor]]
    part: str = ""


# torchvision's classifiers
# -------------------------

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


# timm's image classification networks, and their published weights. timm is an extra: most have none
# --------------------------------------------------------------------------------------------------

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
            hint="use another network",
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
    are_powers = all(each.bit_count() == 1 for each in reductions)
    shrink = are_powers and all(low < high for low, high in pairwise(reductions))
    if len(reductions) < 2 or not shrink:
        raise ConfigError(
            f"model.encoder: {name} has no features at a half, a quarter, … of the resolution",
            hint="use another encoder, e.g. timm/resnet34 or timm/convnext_tiny",
        )
    nhwc = getattr(encoder, "output_fmt", None) == "NHWC"
    return EncoderUNet(
        encoder, info.channels(), reductions, num_classes, nhwc=nhwc, width=width, up=up, norm=norm
    )


def _tried(name: str, side: int, **settings: Any) -> tuple[nn.Module, Any]:  # noqa: ANN401 - of timm
    """Build a network, and run it once on an image of `side` pixels; return it and its output."""
    import timm

    config = _config(name)
    try:
        model: nn.Module = timm.create_model(_bare(name), **settings, **_size(config, side))
        return model, _output(model, side)
    except DynamicOutputShapeException:  # says nothing of the network: its memory is being estimated
        raise
    except Exception as error:  # each network has its own way to say that a size does not suit
        raise ConfigError(
            f"data.image_size: {name} can't take images of {side} pixels: {_reason(error)}",
            hint=f"use --set data.image_size={config.input_size[-1]}, or another network",
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
    import timm

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
    from timm.models import get_pretrained_cfg

    try:
        return get_pretrained_cfg(_bare(name), allow_unregistered=False)
    except RuntimeError as error:
        raise ConfigError(
            f"model.name: {name}: {_reason(error)}",
            hint=f"use {name.partition('.')[0]}, or other weights of it",
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
