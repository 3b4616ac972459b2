"""Pictures of the first training images, as the network gets them: to be looked at while a run compiles."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import Batch, Window
from mptui.data.pictures import SEAM, Pixels, bright, coloured
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.reporting.pictures import SIDE, visible
from mptui.errors import MptuiError
from mptui.events import ImagesGenerated
from mptui.tasks.classification import Classification
from mptui.tasks.segmentation import Segmentation

OnData = Callable[[list[Pixels]], str]

COUNT = 8
"""Largest number of images."""
_GREY = 128


class FirstBatch(Hook):
    """Tells of the first images of the batch that the first step of this process takes."""

    def __init__(self, context: TrainContext, *, on_data: OnData | None) -> None:
        self._context = context
        self._on_data = on_data

    @property
    def active(self) -> bool:
        """Whether pictures are wanted, and somebody takes them; latents of a VAE are none."""
        config = self._context.job.config
        return self._on_data is not None and config.logging.pictures > 0 and config.model.vae is None

    def first_window(self, window: Window) -> None:
        """Picture the images, with their masks or with words on each."""
        if self._on_data is None or not len(window):
            return
        began = time.perf_counter()
        with contextlib.suppress(RuntimeError, MptuiError):  # the step itself tells of it
            whole = next(iter(window))
            count = min(COUNT, whole.size)
            batch = whole.rows(slice(count), size=count, valid=count)
            tiles = self._tiles(batch)
            self._context.emit(
                ImagesGenerated(
                    step=self._context.state.step,
                    epoch=0,
                    path=self._on_data(tiles),
                    images=len(tiles),
                    seconds=time.perf_counter() - began,
                    what="data",
                    labels=self._words(batch),
                )
            )

    def _tiles(self, batch: Batch) -> list[Pixels]:
        """Return the images, each [H, W, C], at most `SIDE` pixels a side, with its mask beside it."""
        task = self._context.task
        tiles = list(visible(_on_host(batch.images_BCHW.float()), self._context.job.config.data))
        if not isinstance(task, Segmentation):
            return [_small(tile) for tile in tiles]
        colours = bright(task.classes)
        masks = [coloured(mask, colours) for mask in _on_host(batch.targets)]
        return [_side_by_side(_small(tile), _small(mask)) for tile, mask in zip(tiles, masks, strict=True)]

    def _words(self, batch: Batch) -> list[str]:
        """Return what is said of each image: its class, or both of a mixed one, or how noisy it is."""
        task = self._context.task
        if batch.timesteps is not None:
            return [f"noise of step {time:,}" for time in batch.timesteps.tolist()]
        if not isinstance(task, Classification):
            return []
        names = [task.classes[number] for number in batch.targets.tolist()]
        if batch.mixed_targets is None or batch.lam == 1:
            return names
        others = [task.classes[number] for number in batch.mixed_targets.tolist()]
        return [f"{100 * batch.lam:.0f} % {name}, {other}" for name, other in zip(names, others, strict=True)]


def _on_host(values: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.cpu().numpy()
    return array


def _small(pixels: Pixels) -> Pixels:
    factor = -(-max(pixels.shape[:2]) // SIDE)
    return pixels[factor // 2 :: factor, factor // 2 :: factor]


def _side_by_side(image: Pixels, mask: Pixels) -> Pixels:
    seam = np.full((len(image), SEAM, 3), _GREY, np.uint8)
    return np.concatenate([image, seam, mask], axis=1)
