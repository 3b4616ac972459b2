"""Makes images with a trained diffusion model, measures them, and writes them as PNG files."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mptui.config.resolve import CHECKPOINT
from mptui.data.batch import Batch
from mptui.data.dataset import CutSplit, FileSplit
from mptui.data.noise import Noising
from mptui.data.pictures import Pixels, grid, save_png
from mptui.data.types import Problem, Split
from mptui.errors import ConfigError
from mptui.io.written_files import OutputFiles
from mptui.lab.use.evaluate import NEIGHBOURS, HalvingBatches, PrecisionRecall, open_samples, precision_recall
from mptui.lab.use.predict import Predictor, loader_of
from mptui.lab.use.trained import Trained, open_trained
from mptui.models.weights import head_names
from mptui.registry.names import SampleKind, SamplingMethod
from mptui.registry.tasks import DIFFUSION, TASKS
from mptui.tasks.image_sampler import ImageSampler
from mptui.text import clean_name, shell_word

# Makes images with a trained diffusion model, and writes them as PNG files
# -------------------------------------------------------------------------

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
        batch = trained.task.dummy_batch(torch.zeros(rows, 1, 1, 1))
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


# Precision and recall of the images of a diffusion model, by features of a classifier that mptui trained
# -------------------------------------------------------------------------------------------------------
# Shapes: N images, D features.

Note = Callable[[str], None]

_MOST = 10_000
"""Images of each set that are compared: the distances of all pairs are computed."""


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """Made images beside the validation images of their run.

    Attributes:
        made: Precision and recall of the made images.
        training: The same of training images in their place: what a perfect generator would have.
        images: Number of images in each of the three sets.
    """

    made: PrecisionRecall
    training: PrecisionRecall
    images: int


def open_features(run: Path, device: str, *, note: Note, trust_code: bool) -> Trained:
    """Open a classifier whose outputs are its features: what its last layer takes.

    It sees whole images, without the margin of its own validation, and computes in fp32.

    Args:
        run: The run directory.
        device: The device to use.
        note: As of `open_trained`.
        trust_code: As of `open_trained`.

    Raises:
        ConfigError: It is no classifier of 8-bit RGB images.
        RunDirectoryError: As of `open_trained`.
        DiskError: As of `open_trained`.
    """
    given = {"hardware.device": device, "precision.mode": "fp32", "data.crop_pct": 1.0}
    flags = {key: (CHECKPOINT, value) for key, value in given.items()}
    trained = open_trained(run, None, flags, note=note, trust_code=trust_code)
    if trained.preprocessing.kind is not SampleKind.CLASS or trained.preprocessing.stored is not None:
        raise ConfigError(
            f"--features {run.name}: this is no classifier of 8-bit RGB images",
            hint="train one on the classes of your images, e.g. mptui run --model resnet18 --data FOLDER",
        )
    for name in head_names(trained.model):
        trained.model.set_submodule(name, nn.Identity())
    return trained


def image_quality(
    generator: Trained, classifier: Trained, files: Sequence[Path], *, on_progress: OnProgress, note: Note
) -> ImageQuality:
    """Compare made images with as many validation images, of the same size, and these with training images.

    Args:
        generator: The run that made them.
        classifier: From `open_features`.
        files: The made images.
        on_progress: Called with (files checked, all files), then for each set with (images done, all images).
        note: Called with what a person should know.

    Raises:
        ConfigError: There are too few images.
        DataError: The data of the generator is missing or unreadable.
    """
    dataset = open_samples(generator, {}, on_progress=on_progress, note=note).dataset
    count = min(len(files), len(dataset.val), len(dataset.train), _MOST)
    if count <= NEIGHBOURS:
        raise ConfigError(
            f"precision and recall need more than {NEIGHBOURS} made, training and validation images",
            hint="make more: --count 1000" if len(files) == count else "leave --features out",
        )
    if count < len(files):
        note(f"{count:,} of {len(files):,} images are compared: the data has no more to compare with")
    paths, geometry = [str(path) for path in files[:count]], generator.preprocessing.geometry
    # classes may be in order: evenly spaced
    of_val, of_train = (np.arange(count) * len(split) // count for split in (dataset.val, dataset.train))
    sets: list[Split] = [
        FileSplit(paths, np.zeros(count, np.int64), np.arange(count)),
        CutSplit(dataset.val, of_val, geometry),
        CutSplit(dataset.train, of_train, geometry),
    ]
    made_ND, val_ND, train_ND = (_features(classifier, split, on_progress, note) for split in sets)
    return ImageQuality(precision_recall(val_ND, made_ND), precision_recall(val_ND, train_ND), count)


def _features(classifier: Trained, split: Split, on_progress: OnProgress, note: Note) -> torch.Tensor:
    """Return the features of the images of a split, as features_ND; without those that can't be read."""

    def left_out(problem: Problem) -> None:
        note(f"left out {problem.path}: {problem.reason}")

    found: list[torch.Tensor] = []
    with loader_of(classifier, split, left_out) as loader:
        predictor = Predictor(classifier, mirror=False, note=note)
        for predicted in predictor(loader, lambda features, _indices: features.flatten(1)):
            found.append(predicted.result[torch.from_numpy(predicted.kept)])
            on_progress(int(predicted.indices[-1]) + 1, len(split))
    return torch.cat(found)
