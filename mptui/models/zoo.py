"""Builds the network that a configuration names, and loads its weights; checks that it suits the images."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.classifiers import Pretrained
from mptui.models.layers import RGB_BANDS, adapt_first_convolution, multiply_tiny_images
from mptui.models.vae import latent_shape
from mptui.models.weights import limit_head, load_state, load_weights
from mptui.registry.models import PRETRAINED, ModelSpec, known_model
from mptui.registry.names import PREFIX
from mptui.registry.own_code import is_own
from mptui.registry.tasks import RECONSTRUCTION, TASKS


def build(
    config: ModelConfig, *, num_classes: int, task: str, side: int, bands: int = RGB_BANDS
) -> nn.Module:
    """Build a network with random weights, on torch's default device.

    Args:
        config: The name of the network, and its settings.
        num_classes: Classes to tell apart.
        task: The task of the data: a key of `mptui.registry.tasks.TASKS`.
        side: Height and width of the images, in pixels.
        bands: Number of their bands.

    Raises:
        ConfigError: There is no such network, it does not fit the task, or it can't take images of `side` or
            `bands`.
    """
    spec = check(config, task, side)
    model = spec.build(num_classes=num_classes, side=side, **_settings(config, spec))
    takes_bands = bands == RGB_BANDS or adapt_first_convolution(model, bands)
    if not takes_bands and not is_own(config.name):
        raise ConfigError(
            f"model.name: {config.name} takes images of {RGB_BANDS} bands, not of {bands}",
            hint="use another network, or leave data.bands out",
        )
    multiply_tiny_images(model)
    if is_own(config.name):
        use_plain_memory(model)
    else:
        limit_head(model)
    return model


def use_plain_memory(model: nn.Module) -> None:
    """Give memory of their own to tensors that are views with gaps, or one value several times (`expand`).

    As their way to another device does: kernels of optimizers read memory in order, and a checkpoint can't be
    loaded into memory that is there several times.
    """
    for tensor in model.state_dict(keep_vars=True).values():
        is_strided = (
            isinstance(tensor, torch.Tensor) and not is_lazy(tensor) and tensor.layout == torch.strided
        )
        if is_strided and not torch.ops.aten.is_non_overlapping_and_dense(tensor):
            tensor.data = tensor.detach().contiguous()


def check(config: ModelConfig, task: str, side: int) -> ModelSpec:
    """Check that `build` can build this, without building it; return the network's spec.

    Raises:
        ConfigError: As `build`.
    """
    name, spec = known_model(config.name)
    _check_task(name, spec, task)
    if config.encoder is not None:
        _check_encoder(name, spec, config.encoder)
    side = _network_side(name, spec, side, config)
    _check_side(name, spec, side, None if config.encoder else config.depth)
    _check_diffusion(name, spec, side, config)
    return spec


def input_shape(config: ModelConfig, bands: int, side: int) -> tuple[int, int, int]:
    """Return channels, height and width of a network's input, for images of so many bands and pixels.

    Raises:
        ConfigError: There is no such VAE, or it does not encode such images.
    """
    return (bands, side, side) if config.vae is None else latent_shape(config.vae, side)


def pretrained(config: ModelConfig) -> Pretrained:
    """Return the published weights of a network, without reading their file.

    Raises:
        ConfigError: There is no such network, or no weights of it.
    """
    found = published(config)
    if found is None:
        raise ConfigError(
            f"model.weights = {PRETRAINED}: there are no pretrained weights of {config.name}",
            hint="name a file of weights (--weights FILE), or train from random ones (--weights none)",
        )
    return found


def published(config: ModelConfig) -> Pretrained | None:
    """Return what is known of the published weights of a network; None if there are none.

    Raises:
        ConfigError: There is no such network.
    """
    _, spec = known_model(config.name)
    return spec.pretrained(**_settings(config, spec))


def weights_file(config: ModelConfig) -> Path | None:
    """Return the file of `model.weights`; published weights that are not in their cache are downloaded.

    Raises:
        ConfigError: As `pretrained`, or they can't be downloaded.
    """
    if config.weights is None:
        return None
    return pretrained(config).file.path() if config.weights == PRETRAINED else Path(config.weights)


def load_weights_of(model: nn.Module, config: ModelConfig, path: Path, side: int) -> list[str]:
    """Load `model.weights` into a model from `build`.

    Args:
        model: The model.
        config: The same as of `build`.
        path: Result of `weights_file`.
        side: Height and width of the images, in pixels.

    Returns:
        Warnings for the user, e.g. for a head for another number of classes.

    Raises:
        ConfigError: As `mptui.models.weights.load_weights`.
    """
    if config.weights != PRETRAINED:
        return load_weights(model, path, config.weights_key)
    found = pretrained(config)
    return load_state(model.get_submodule(found.part), found.read(path, side), path)


def parameter_count(model: nn.Module, *, trained: bool = False) -> int:
    """Number of parameters of `model`; with `trained`, of those that are trained now."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


def _settings(config: ModelConfig, spec: ModelSpec) -> dict[str, Any]:
    return {key: getattr(config, key) for key in spec.settings}


def _check_task(name: str, spec: ModelSpec, task: str) -> None:
    if spec.task is None and task == RECONSTRUCTION:
        raise ConfigError(
            f"model.name: {name} can't be trained for {task}",
            hint=f"use --model {TASKS[task].network.accelerator}",
        )
    if (own := spec.task) is not None and own != task:
        raise ConfigError(
            f"model.name: {name} {TASKS[own].output}, but this data is {TASKS[task].sample.value}",
            hint=f"use --model {TASKS[task].network.accelerator}, or data with {TASKS[own].sample.value}",
        )


def _check_encoder(name: str, spec: ModelSpec, encoder: str) -> None:
    if "encoder" not in spec.settings:
        raise ConfigError(
            f"model.encoder = {encoder}: {name} has an encoder of its own",
            hint="use --model unet, or leave model.encoder out",
        )
    known_model(encoder, "model.encoder")
    if not encoder.startswith(PREFIX):
        raise ConfigError(f"model.encoder: {encoder} is no network of timm", hint=f"use {PREFIX}{encoder}")


def _network_side(name: str, spec: ModelSpec, side: int, config: ModelConfig) -> int:
    """Return the height and width of the network's input: of images, or of their latents."""
    if ("vae" in spec.settings) == (config.vae is None):
        if config.vae is None:
            raise ConfigError(
                f"model.vae is not set: {name} learns the latents of a VAE",
                hint="train one: mptui run --model vae, then mptui export RUN --format diffusers --out DIR",
            )
        raise ConfigError(f"model.vae: {name} learns images", hint="leave it out, or use latent_diffusion")
    return input_shape(config, RGB_BANDS, side)[1]


def _check_diffusion(name: str, spec: ModelSpec, side: int, config: ModelConfig) -> None:
    given = [key for key in ("attention", "class_conditional") if getattr(config, key)]
    if unknown := [key for key in given if key not in spec.settings]:
        raise ConfigError(
            f"model.{unknown[0]}: {name} has no such setting", hint="leave it out, or use diffusion_unet"
        )
    heights = [side >> level for level in range(config.depth + 1)]
    if other := [height for height in config.attention or () if height not in heights]:
        raise ConfigError(
            f"model.attention = {other[0]}: no level of {name} has this height",
            hint=f"choose of {', '.join(map(str, heights))}: its input, halved model.depth times",
        )


def _check_side(name: str, spec: ModelSpec, side: int, depth: int | None) -> None:
    smallest, multiple = spec.smallest_side, spec.side_multiple
    at_depth = ""
    if "depth" in spec.settings and depth is not None:
        at_depth = f" at depth {depth}"
        smallest = max(smallest, 2**depth)
        multiple = max(multiple, 2**depth if spec.whole_levels else 1)
    if side < smallest:
        raise ConfigError(
            f"data.image_size: {name}{at_depth} can't take images of {side} pixels",
            hint=f"use --set data.image_size={smallest} or more, or another network",
        )
    if side % multiple:
        nearest = max(1, round(side / multiple)) * multiple
        raise ConfigError(
            f"data.image_size: {name} needs a multiple of {multiple} pixels, not {side}",
            hint=f"use --set data.image_size={nearest}, or another network",
        )
