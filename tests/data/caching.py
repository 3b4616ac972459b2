"""A set of any size, and what is kept of it in memory."""

from typing import Any

import numpy as np
import torch

from mptui.data import cache_policy
from mptui.data.cache_policy import choose_cache
from mptui.data.transforms import IMAGENET, Geometry, Transforms
from mptui.data.types import Dataset, Sides
from mptui.registry.names import SampleKind
from mptui.registry.transforms import transforms_of
from tests.data.samples import Samples

CPU = torch.device("cpu")


def dataset(count: int, side: int = 500, **settings: Any) -> Dataset:
    sizes: Sides = np.full((count, 2), (side, side * 4 // 3), np.uint16)
    split = Samples(count)
    chosen = {"kind": SampleKind.CLASS, "sizes": (sizes, sizes[: count // 4]), **settings}
    return Dataset("set", classes=("a", "b"), train=split, val=Samples(count // 4), **chosen)


def chosen(of: Dataset, asked: str = "auto", **settings: Any) -> cache_policy.CacheChoice:
    wanted: dict[str, Any] = {"side": 224, "resize": None, "device": CPU, "augment": True, "epochs": 10}
    wanted |= settings
    views = {key: wanted.pop(key) for key in ("augment", "names") if key in wanted}
    halves = halves_of(of.kind, wanted.pop("side"), wanted.pop("resize"), **views)
    return choose_cache(asked, of, halves=halves, **wanted)


def halves_of(
    kind: SampleKind, side: int, resize: int | None = None, *, augment: bool = True, names: Any = None
) -> tuple[Transforms, Transforms]:
    names = tuple(names or transforms_of("default", kind)) if augment else ()
    train, val = (Geometry.for_training(kind, side, resize, names=each) for each in (names, ()))
    return Transforms(train, IMAGENET, names), Transforms(val, IMAGENET)
