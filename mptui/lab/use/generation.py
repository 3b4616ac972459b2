"""Makes images with a trained diffusion model, and writes them as PNG files."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.png_files import Pixels, grid, save_png
from mptui.data.transforms.diffusion_noise import Noising
from mptui.errors import ConfigError
from mptui.lab.use.halving import HalvingBatches
from mptui.lab.use.prediction.output_file import output_file
from mptui.lab.use.trained import Trained
from mptui.registry.denoising import SamplingMethod
from mptui.registry.samples import SampleKind
from mptui.tasks.image_sampler import ImageSampler
from mptui.text import shell_word

OnProgress = Callable[[int, int], None]

GRID = "grid.png"
_MOST_IN_GRID = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What to make: `count` images in `steps` forward passes each, and the folder for them."""

    folder: Path
    count: int
    steps: int
    seed: int
    method: SamplingMethod


@dataclass(frozen=True, slots=True)
class MadeImages:
    """The files that were written, in the order of the images, and the duration of sampling in seconds."""

    files: list[Path]
    grid: Path
    seconds: float


def check_generates(trained: Trained) -> None:
    """Check that a run's network makes images.

    Raises:
        ConfigError: It doesn't.
    """
    if trained.preprocessing.kind is not SampleKind.IMAGE:
        raise ConfigError(
            f"{trained.run.name} is of a network for {trained.plan.task}: it makes no images",
            hint=f"use it on images: mptui predict {shell_word(trained.run)} INPUT",
        )


def make_images(
    trained: Trained, request: SampleRequest, *, on_progress: OnProgress, note: Callable[[str], None]
) -> MadeImages:
    """Make images in batches of the run's batch size, and write them.

    The last batch is padded, so that the bits of an image do not depend on `count`.

    Args:
        trained: The run.
        request: What to make.
        on_progress: Called with (images done, all images).
        note: Called once if a batch does not fit into memory.

    Raises:
        ConfigError: The network makes no images.
        DiskError: A file can't be written.
        MemoryExhaustedError: Not even one image fits into memory.
    """
    check_generates(trained)
    sampler, in_pieces = _sampler(trained, request), HalvingBatches(trained.device, note)
    files: list[Path] = []
    shown: list[Pixels] = []
    began = time.perf_counter()

    def make(batch: Batch) -> None:
        done = len(files)
        new = min(batch.size, request.count - done)
        pixels_BHWC = sampler(
            batch.sample_indices,
            lambda step: on_progress(done + new * step // request.steps, request.count),
        )
        for pixels_HWC in pixels_BHWC[:new].cpu().numpy():
            files.append(_save(pixels_HWC, request.folder / f"{len(files):04}.png"))
            shown.extend([pixels_HWC] if len(shown) < _MOST_IN_GRID else [])

    rows = trained.config.training.batch_size
    while (first := len(files)) < request.count:
        batch = trained.task.made_up_batch(torch.zeros(rows, 1, 1, 1))
        in_pieces(replace(batch, sample_indices=np.arange(first, first + rows)), make)
    seconds = time.perf_counter() - began
    return MadeImages(files, _save(grid(np.stack(shown)), request.folder / GRID), seconds)


def _sampler(trained: Trained, request: SampleRequest) -> ImageSampler:
    training = trained.config.training
    return ImageSampler(
        network=trained.model,
        forward_context=trained.precision.forward_context,
        noising=Noising(training.noise_schedule, training.prediction),
        normalization=trained.preprocessing.normalization,
        side=int(trained.config.data.image_size or 0),
        device=trained.device,
        channels_last=trained.plan.channels_last,
        method=request.method,
        steps=request.steps,
        seed=request.seed,
    )


def _save(pixels: Pixels, path: Path) -> Path:
    with output_file(path) as fresh:
        save_png(pixels, fresh)
    return path
