"""A few training images as the network gets them, to be looked at before the first step."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.loader import Loader, LoaderOptions
from mptui.data.pictures import Pixels, bright, coloured
from mptui.data.sampler import EpochOrder
from mptui.data.types import Dataset, LabelledSplit, SampleFormat
from mptui.engine.reporting.pictures import SEAM, SIDE, visible
from mptui.errors import MptuiError
from mptui.registry.names import SampleKind
from mptui.registry.own_code import is_own
from mptui.registry.tasks import TASKS
from mptui.runs.planning.build import build_transforms
from mptui.runs.planning.plan import Plan

# A few training images as the network gets them
# ----------------------------------------------
# They are those of the first epoch, in its views, which depend on nothing but the seed, the epoch and the
# sample: reading them here changes nothing that the run reads.

COUNT, _AT_ONCE = 8, 2
_LONGEST_S = 0.3
"""Seconds after the first ones in which more are read: a few large images take longer than that."""
_GIVEN_UP_S = 5.0
"""Seconds after which what has not come is not waited for, as of a file server that hangs."""

_GREY = 128


@dataclass(frozen=True, slots=True)
class DataPictures:
    """Images of one size, [H, W, C] each, a mask beside each, or the labels of those in classes."""

    tiles: list[Pixels]
    labels: list[str]


def data_pictures(plan: Plan, dataset: Dataset) -> DataPictures | None:
    """Return the first images of a run, before mixup.

    None if they can't be read, or are the person's own code, which is executed where a run trains alone.
    """
    if is_own(str(plan.config.data.name)):
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            found = _read(plan, dataset)
    except (MptuiError, OSError):  # the run itself tells of it
        return None
    return found if found.tiles else None


def _read(plan: Plan, dataset: Dataset) -> DataPictures:
    """Read them on the host, in a process of their own if the run has some: a file may kill its decoder.

    Raises:
        DataError: They can't be read.
        TimeoutError: They have not come in time.
    """
    config, kind = plan.config, TASKS[plan.task].sample
    classes = None
    if config.data.sampler == "balanced" and isinstance(dataset.train, LabelledSplit):
        classes = dataset.train.sample_labels
    order = EpochOrder(
        len(dataset.train), batch_size=_AT_ONCE, train=True, seed=config.training.seed, labels_N=classes
    )
    loader = Loader(
        dataset.train,
        SampleFormat(kind, len(dataset.classes), dataset.pixels, labelled=kind is not SampleKind.IMAGE),
        order,
        build_transforms(plan, train=True, mixes=False),
        device=torch.device("cpu"),
        noising=None,
        options=LoaderOptions(workers=min(1, plan.workers), bad_budget=1.0, check_stop=_patience()),
    )
    until = math.inf
    tiles: list[Pixels] = []
    labels: list[str] = []
    colours = bright(dataset.classes or ("",))
    with loader:
        for window in loader.windows(0, 1):
            for batch in window:
                images = visible(batch.images_BCHW.float().numpy(), config.data)
                targets: npt.NDArray[np.int64] = batch.targets.numpy()
                if kind is SampleKind.CLASS:
                    labels += (dataset.classes[int(target)] for target in targets)
                masks = [coloured(each, colours) for each in targets] if kind is SampleKind.MASK else []
                tiles += (_tile(image, masks[n : n + 1]) for n, image in enumerate(images))
            until = min(until, time.monotonic() + _LONGEST_S)
            if len(tiles) >= COUNT or time.monotonic() >= until:
                break
    return DataPictures(tiles, labels)


def _patience() -> Callable[[], None]:
    """Return what raises TimeoutError once the pictures have taken too long."""
    until = time.monotonic() + _GIVEN_UP_S

    def check() -> None:
        if time.monotonic() >= until:
            raise TimeoutError("the first images have not come in time")

    return check


def _tile(pixels: Pixels, mask: list[Pixels]) -> Pixels:
    """Return an image of at most `SIDE` pixels a side, with its mask beside it."""
    small = [_small(each) for each in (pixels, *mask)]
    seam = np.full((len(small[0]), SEAM, 3), _GREY, np.uint8)
    return small[0] if not mask else np.concatenate([small[0], seam, small[1]], axis=1)


def _small(pixels: Pixels) -> Pixels:
    factor = -(-max(pixels.shape[:2]) // SIDE)
    return pixels[factor // 2 :: factor, factor // 2 :: factor]
