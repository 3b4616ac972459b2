"""Loaders whose parts are built from settings by their names."""

from dataclasses import fields
from typing import Any

import torch

from mptui.data.loader import Loader, LoaderOptions
from mptui.data.sampler import EpochOrder
from mptui.data.transforms import Geometry, Transforms, default_normalization
from mptui.data.types import SampleFormat, Split
from mptui.registry.names import SampleKind
from mptui.registry.transforms import transforms_of


def built_loader(
    split: Split,
    *,
    kind: SampleKind,
    side: int,
    num_classes: int,
    train: bool,
    augment: bool = False,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - it is immutable
    **settings: Any,
) -> Loader:
    """Return a loader; without `train` and `augment`, with the views of validation.

    `settings` are those of `SampleFormat`, `EpochOrder`, `Geometry`, `Transforms` and `LoaderOptions`, and
    `noising`.
    """
    named = settings.pop("names", None) or transforms_of("default", kind)
    names = tuple(named) if augment and train else ()
    parts = {each: _taken(each, settings) for each in (SampleFormat, EpochOrder, Transforms, LoaderOptions)}
    noising = {"noising": settings.pop("noising")} if "noising" in settings else {}
    normalization = parts[Transforms].pop("normalization", None) or default_normalization(kind)
    return Loader(
        split,
        SampleFormat(kind, num_classes, **parts[SampleFormat]),
        EpochOrder(len(split), train=train, **parts[EpochOrder]),
        Transforms(
            Geometry.for_training(kind, side, names=names, **settings),
            normalization,
            names=names,
            **parts[Transforms],
        ),
        device=device,
        options=LoaderOptions(**parts[LoaderOptions]),
        **noising,
    )


def _taken(part: Any, settings: dict[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(part) if field.name in settings]
    return {name: settings.pop(name) for name in names}
