"""Chooses what a configuration leaves open of the images: size, crops, interpolation, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from mptui.config.schema import DataConfig, RunConfig
from mptui.data.transforms.crop import CROP_PCT, default_crop_scale, default_resize
from mptui.data.transforms.normalization import HALF, default_normalization
from mptui.errors import ConfigError
from mptui.registry.models import PRETRAINED
from mptui.registry.samples import Interpolation, SampleKind
from mptui.registry.tasks import TASKS
from mptui.runs.store.directory import CONFIG

Choices = dict[str, tuple[Any, str]]
"""Key of [data] -> value and source."""


def image_choices(config: RunConfig, task: str, device: str, why: str) -> Choices:
    """Return the unset values of the images: of the weights that it begins with, else of the task.

    Args:
        config: The configuration, with the name of the network.
        task: The task.
        device: Kind of the device: cuda, cpu, …
        why: Source of values that depend on the device.

    Raises:
        ConfigError: Images would be enlarged, the normalisation is for other channels, or there are no
            pretrained weights.
    """
    data, kind = config.data, TASKS[task].sample
    weights = _weights(config)
    own = weights.source if weights else ""
    if data.image_size is not None:
        size: Choices = {}
    elif weights is not None and weights.side is not None:
        size = {"image_size": (weights.side, own)}
    else:
        size = {"image_size": (TASKS[task].side.on(device), why)}
    side = size["image_size"][0] if size else int(data.image_size or 0)
    return (
        size
        | _views(data, kind, side)
        | _resampling(data, kind, weights, own)
        | _normalization(data, kind, weights, own)
    )


@dataclass(frozen=True, slots=True)
class WeightsImages:
    """The images that weights were trained on; see `Pretrained`."""

    source: str
    mean: Sequence[float]
    std: Sequence[float]
    side: int | None
    interpolation: Interpolation
    crop_pct: float


def _weights(config: RunConfig) -> WeightsImages | None:
    """Return the images that the weights were trained on, if they leave something open.

    Those of a run's file are the run's; those of any other file are taken to be of the network's published
    weights.
    """
    data, file = config.data, config.model.weights
    of_weights = (data.image_size, data.interpolation, data.crop_pct, data.mean, data.std)
    if file is None or None not in of_weights:
        return None
    if file != PRETRAINED and (found := _of_run(Path(file))) is not None:
        return found
    from mptui.models.zoo import pretrained, published

    weights = pretrained(config.model) if file == PRETRAINED else published(config.model)
    if weights is None:
        return None
    return WeightsImages(
        f"weights {weights.name}"
        if file == PRETRAINED
        else f"the network's published weights, {weights.name}",
        weights.mean,
        weights.std,
        weights.side,
        weights.interpolation,
        weights.crop_pct,
    )


def _of_run(file: Path) -> WeightsImages | None:
    """Return the images of a run whose checkpoint has the file; None if it is of no run."""
    if len(file.parents) < 3:
        return None
    run = file.parents[2]
    try:
        data = DataConfig.model_validate(tomli.loads((run / CONFIG).read_text())["data"])
    except (OSError, ValueError, KeyError):
        return None
    if data.mean is None or data.std is None or data.interpolation is None:
        return None
    crop = CROP_PCT if data.crop_pct is None else data.crop_pct
    return WeightsImages(
        f"the run {run.name}", data.mean, data.std, data.image_size, data.interpolation, crop
    )


def _views(data: DataConfig, kind: SampleKind, side: int) -> Choices:
    """Return the unset values of resizing and cropping.

    Raises:
        ConfigError: Images would be resized to less than the network's input.
    """
    if data.resize is not None and data.resize < side:
        raise ConfigError(
            f"data.resize = {data.resize} is below data.image_size = {side}: all crops would be enlarged",
            hint=f"set data.resize to {side} or more, or data.image_size to {data.resize}",
        )
    source = "chosen: by data.image_size"
    choices: Choices = {} if data.resize is not None else {"resize": (default_resize(side), source)}
    scale = default_crop_scale(kind, side) if data.augment == "default" else None
    if data.crop_scale is None and scale is not None:
        choices["crop_scale"] = (list(scale), source)
    return choices


def _resampling(data: DataConfig, kind: SampleKind, weights: WeightsImages | None, own: str) -> Choices:
    """Return the unset ones of `interpolation` and of `crop_pct`, which only images with classes have."""
    source = own or "default"
    choices: Choices = {}
    if data.interpolation is None:
        choices["interpolation"] = (weights.interpolation if weights else "bilinear", source)
    if data.crop_pct is None and kind is SampleKind.CLASS:
        choices["crop_pct"] = (weights.crop_pct if weights else CROP_PCT, source)
    return choices


def _normalization(data: DataConfig, kind: SampleKind, weights: WeightsImages | None, own: str) -> Choices:
    """Return the unset ones of `mean` and `std`.

    Raises:
        ConfigError: They are not for as many channels as images have, or no network learns such images.
    """
    if data.bands == "all":
        if kind is SampleKind.IMAGE:
            raise ConfigError(
                'data.bands = "all": networks that generate images make 8-bit RGB',
                hint="leave data.bands out",
            )
        return {}  # the training images are measured
    usual = default_normalization(kind)
    source = own or ("chosen: pixels in -1..1" if usual == HALF else "chosen: of ImageNet")
    given = {"mean": data.mean, "std": data.std}
    known = {"mean": (weights or usual).mean, "std": (weights or usual).std}
    for key, values in given.items():
        if values is not None and len(values) != len(usual.mean):
            raise ConfigError(
                f"data.{key} = {values}: images have {len(usual.mean)} channels",
                hint=f"give data.{key} one value for each channel, or leave it out",
            )
    return {key: (list(known[key]), source) for key, values in given.items() if values is None}
