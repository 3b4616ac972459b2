"""Makes images after validations of a diffusion model, for people to look at."""

import contextlib
import math
import time

import numpy as np
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.png_files import Pixels
from mptui.data.transforms.diffusion_noise import Noising
from mptui.data.transforms.normalization import HALF, Normalization
from mptui.engine.context import OnImages, TrainContext
from mptui.engine.evaluate import PROGRESS_S, in_eval_mode
from mptui.engine.guards.oom import compute_in_pieces
from mptui.engine.hooks import Hook
from mptui.events import ImagesGenerated, Progress
from mptui.tasks.diffusion import Diffusion
from mptui.tasks.image_sampler import ImageSampler

_SHARE = 20
"""Shortest time between two grids, in units of the duration of the last one."""
_AT_LEAST_EVERY = 10
"""Epochs."""


class _StopRequestedError(Exception):
    """The run is to stop: the images are not finished."""


class ImageGrids(Hook):
    """Makes the images of `[sampling]` in the first process, with the averaged weights if there are any.

    The training thread makes them, between the validation and the next epoch; other processes wait where they
    meet the first one next, after they have given it their shards of the weights, if these are sharded. No
    state of the run changes, and no number of its random sequences is used.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._cost_s, self._ended_at, self._last_step = 0.0, -math.inf, -1

    @property
    def active(self) -> bool:
        """Whether the network makes images, and somebody takes them, or needs the weights of this process."""
        context = self._context
        wanted = context.on_images is not None or context.job.is_sharded
        return wanted and context.job.config.sampling.count > 0 and isinstance(context.task, Diffusion)

    def epoch_ends(self) -> None:
        """Make images, if they are due."""
        every = self._context.job.config.sampling.every_epochs
        if every is None:
            due = time.perf_counter() - self._ended_at >= _SHARE * self._cost_s
            due |= self._context.outcome.epochs % _AT_LEAST_EVERY == 0  # a cost may have been exceptional
        else:
            due = self._context.outcome.epochs % every == 0
        if self._context.job.is_sharded:
            due = self._context.ranks.broadcast(due)
        if due:
            self._make()

    def run_ends(self) -> None:
        """Make those of the trained network."""
        if self._last_step != self._context.state.step:
            self._make()

    def _make(self) -> None:
        context, before = self._context, self._context.phase
        began = time.perf_counter()
        context.enter("sampling", total=context.job.config.sampling.steps)
        average = context.parts.average
        with (
            contextlib.suppress(_StopRequestedError),
            average.in_place() if average is not None else contextlib.nullcontext(),
            context.parts.replica.whole(),
            in_eval_mode(context.model),
        ):
            if context.on_images is not None:
                self._tell(context.on_images, began)
            self._last_step = context.state.step
        self._ended_at = time.perf_counter()
        self._cost_s = self._ended_at - began
        context.enter(before)
        context.reporter.restart_clock()

    def _tell(self, on_images: OnImages, began: float) -> None:
        pixels_NHWC = self._images()
        seconds, step, epoch = (
            time.perf_counter() - began,
            self._context.state.step,
            self._context.outcome.epochs,
        )
        path = on_images(epoch, pixels_NHWC)
        images = len(pixels_NHWC)
        self._context.emit(ImagesGenerated(step=step, epoch=epoch, path=path, images=images, seconds=seconds))

    def _images(self) -> Pixels:
        """Return the images as pixels_NHWC.

        Raises:
            _StopRequestedError: A stop was requested.
            MemoryExhaustedError: Not even one image fits.
        """
        context, config = self._context, self._context.job.config
        sampler, count = self._sampler(), config.sampling.count
        made: list[Pixels] = []
        told = time.perf_counter()

        def on_step(step: int) -> None:
            nonlocal told
            if context.mailbox.stop_is_asked:
                raise _StopRequestedError
            if time.perf_counter() - told >= PROGRESS_S:
                told = time.perf_counter()
                context.emit(Progress(phase="sampling", done=step, total=config.sampling.steps))

        def make(batch: Batch) -> None:
            indices = batch.sample_indices
            labels = indices % context.job.num_classes if config.model.class_conditional else None
            made.append(sampler(indices, labels, on_step).cpu().numpy())

        rows = min(count, config.training.batch_size)
        for first in range(0, count, rows):
            size = min(rows, count - first)
            batch = context.task.made_up_batch(torch.zeros(size, 1, 1, 1))
            batch.sample_indices = np.arange(first, first + size)
            compute_in_pieces(context, batch, make)
        return np.concatenate(made)

    def _sampler(self) -> ImageSampler:
        context, config = self._context, self._context.job.config
        data = config.data
        given = data.mean is not None and data.std is not None
        return ImageSampler(
            network=context.model.forward,  # not compiled: its batches have another size
            forward_context=context.parts.precision.forward_context,
            noising=Noising.of(config, context.job.num_classes, context.device),
            normalization=Normalization(tuple(data.mean or ()), tuple(data.std or ())) if given else HALF,
            side=int(data.image_size or 0),
            device=context.device,
            channels_last=bool(config.speed.channels_last),
            method=config.sampling.sampler,
            steps=config.sampling.steps,
            seed=config.training.seed,
            guidance=config.sampling.guidance,
        )
