"""Makes images with a trained diffusion model, and writes them as PNG files."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.png_files import Pixels, grid, save_png
from mptui.data.transforms.diffusion_noise import Noising
from mptui.errors import ConfigError
from mptui.io.written_files import OutputFiles
from mptui.lab.use.halving import HalvingBatches
from mptui.lab.use.trained import Trained
from mptui.registry.denoising import SamplingMethod
from mptui.registry.tasks import DIFFUSION, TASKS
from mptui.tasks.image_sampler import ImageSampler
from mptui.text import clean_name, shell_word

OnProgress = Callable[[int, int], None]

GRID = "grid.png"
_MOST_IN_GRID = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What to make.

    Attributes:
        folder: The folder for the images.
        count: Their number.
        steps: Forward passes for each.
        seed: Seed of their noise.
        method: ddim or ancestral.
        class_name: With classes, that of all images; None: the classes in turn.
        guidance: As of `ImageSampler`; None: as of the run's own images.
        output: Writes the files.
    """

    folder: Path
    count: int
    steps: int
    seed: int
    method: SamplingMethod
    class_name: str | None = None
    guidance: float | None = None
    output: OutputFiles = field(default_factory=OutputFiles)


@dataclass(frozen=True, slots=True)
class MadeImages:
    """The files that were written, in the order of the images.

    Attributes:
        files: A file for each image.
        classes: The class of each, if the network has learnt classes.
        grid: The file with all of them.
        seconds: The duration of sampling.
    """

    files: list[Path]
    classes: list[str]
    grid: Path
    seconds: float


def check_generates(trained: Trained) -> None:
    """Check that a run's network makes images.

    Raises:
        ConfigError: It doesn't.
    """
    if trained.plan.task != DIFFUSION:
        raise ConfigError(
            f"{trained.run.name} is of a network for {trained.plan.task}: it makes no images",
            hint=TASKS[trained.plan.task].use.format(run=shell_word(trained.run)),
        )


def make_images(
    trained: Trained, request: GenerationRequest, *, on_progress: OnProgress, note: Callable[[str], None]
) -> MadeImages:
    """Make images in batches of the run's batch size, and write them.

    The last batch is padded, so that the bits of an image do not depend on `count`.

    Args:
        trained: The run.
        request: What to make.
        on_progress: Called with (images done, all images).
        note: Called once if a batch does not fit into memory.

    Raises:
        ConfigError: The network makes no images, has not learnt such a class, or an image would replace a
            file of another origin.
        DiskError: A file can't be written.
        MemoryExhaustedError: Not even one image fits into memory.
    """
    check_generates(trained)
    sampler, in_pieces = _sampler(trained, request), HalvingBatches(trained.device, note)
    class_of = _class_of(trained, request)
    files: list[Path] = []
    classes: list[str] = []
    shown: list[Pixels] = []
    began = time.perf_counter()

    def save(pixels_HWC: Pixels, path: Path) -> Path:
        with request.output.write(path) as fresh:
            save_png(pixels_HWC, fresh)
        return path

    request.output.check(request.folder / GRID)

    def make(batch: Batch) -> None:
        done = len(files)
        new = min(batch.size, request.count - done)
        labels = None if class_of is None else class_of(batch.sample_indices)
        pixels_BHWC = sampler(
            batch.sample_indices,
            labels,
            lambda step: on_progress(done + new * step // request.steps, request.count),
        )
        if labels is not None:
            classes.extend(trained.classes[label] for label in labels[:new])
        for pixels_HWC in pixels_BHWC[:new].cpu().numpy():
            name = f"-{_file_name(classes[len(files)])}" if classes else ""
            files.append(save(pixels_HWC, request.folder / f"{len(files):04}{name}.png"))
            shown.extend([pixels_HWC] if len(shown) < _MOST_IN_GRID else [])

    rows = trained.config.training.batch_size
    while (first := len(files)) < request.count:
        batch = trained.task.made_up_batch(torch.zeros(rows, 1, 1, 1))
        in_pieces(replace(batch, sample_indices=np.arange(first, first + rows)), make)
    seconds = time.perf_counter() - began
    return MadeImages(files, classes, save(grid(np.stack(shown)), request.folder / GRID), seconds)


def _class_of(
    trained: Trained, request: GenerationRequest
) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] | None:
    """Return the function that gives images, by their indices, their labels; None without classes.

    Raises:
        ConfigError: The network has not learnt the class, or none.
    """
    asked, classes = request.class_name, trained.classes
    if not trained.config.model.class_conditional:
        if asked is not None or request.guidance is not None:
            raise ConfigError(
                f"{trained.run.name} has learnt no classes",
                hint="leave --class and --guidance out, or train with --set model.class_conditional=true",
            )
        return None
    if asked is None:
        return lambda indices: indices % len(classes)
    if asked not in classes:
        near = get_close_matches(asked, classes, n=1) or classes[:20]
        raise ConfigError(
            f"--class {clean_name(asked)}: {trained.run.name} has learnt no such class",
            hint=f"name one of its {len(classes)}, e.g. {', '.join(map(clean_name, near))}",
        )
    label = classes.index(asked)
    return lambda indices: np.full_like(indices, label)


def _file_name(class_name: str) -> str:
    """Return the name of a class as a part of a file's name."""
    return re.sub(r"[^\w-]+", "_", class_name)[:40]


def _sampler(trained: Trained, request: GenerationRequest) -> ImageSampler:
    config, guidance = trained.config, request.guidance
    return ImageSampler(
        network=trained.model,
        forward_context=trained.precision.forward_context,
        noising=Noising.of(config, len(trained.classes), trained.device),
        normalization=trained.preprocessing.normalization,
        side=int(config.data.image_size or 0),
        device=trained.device,
        channels_last=trained.plan.channels_last,
        method=request.method,
        steps=request.steps,
        seed=request.seed,
        guidance=config.sampling.guidance if guidance is None else guidance,
    )
