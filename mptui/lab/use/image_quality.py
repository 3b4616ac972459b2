"""Precision and recall of the images of a diffusion model, by features of a classifier that mptui trained.

Shapes: N images, D features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mptui.config.given import CHECKPOINT
from mptui.data.core.types import Problem, Split
from mptui.data.formats.combined import CutSplit
from mptui.data.formats.splits import FileSplit
from mptui.errors import ConfigError
from mptui.lab.use.evaluation.evaluation_data import open_samples
from mptui.lab.use.precision_recall import NEIGHBOURS, PrecisionRecall, precision_recall
from mptui.lab.use.prediction.predictor import Predictor, loader_of
from mptui.lab.use.trained import Trained, open_trained
from mptui.models.weights import head_names
from mptui.registry.samples import SampleKind

OnProgress = Callable[[int, int], None]
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
