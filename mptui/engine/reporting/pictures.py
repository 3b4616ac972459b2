"""Pictures of each validation, for people to look at: what the network predicts of which samples.

Shapes: N samples, C channels, H and W pixels.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from mptui.config.schema import DataConfig
from mptui.data.core.batch import Batch
from mptui.data.core.class_colours import Palette, coloured, palette
from mptui.data.core.png_files import Pixels
from mptui.data.core.predictions import BY_CLASS, RANDOM, WORST, PicturedSample, ValidationPictures
from mptui.data.core.rng import RandomStream, generator
from mptui.data.core.types import LabelledSplit
from mptui.data.transforms.normalization import IMAGENET
from mptui.engine.context import TrainContext
from mptui.engine.evaluate import ValidationResult, worst_classes
from mptui.engine.hooks import Hook
from mptui.engine.reporting.picked_samples import PickedRows, PickedSamples, of_classes, of_masks
from mptui.events import ImagesGenerated
from mptui.tasks.classification import Classification
from mptui.tasks.segmentation import Segmentation

OF_GROUP = 16
"""Number of the worst samples, and of the random ones."""
OF_CLASS, CLASSES_SHOWN = 4, 16
"""Largest number of samples of a class, and of classes with samples; the others are not pictured by class."""
SEAM, _GREY = 2, 128
"""Width in pixels and brightness of the line between an image and its masks."""
_MOST_CONFUSED = 1000
"""Largest number of classes of which the confusion matrix is kept with the pictures."""
_SHARE = 20
"""Shortest time between two files, in units of the duration of the last one."""
_CLIPPED = (2.0, 98.0)
"""Percentiles of each band of an image that are shown black and white, if it is not 8-bit RGB."""


class PredictionPictures(Hook):
    """Makes the pictures of each validation, with the samples of all ranks; the first one writes them.

    No state of the run changes. With short validations, files are written as often as takes a twentieth of
    the time; the best and the last are written at the end, or after a stop.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._picked: PickedSamples | None = None
        self._chosen: dict[str, npt.NDArray[np.int64]] | None = None
        self._shown: Iterable[int] = range(CLASSES_SHOWN)
        self._unwritten: dict[str, ValidationPictures] = {}
        self._cost_s, self._ended_at = 0.0, -float("inf")

    @property
    def active(self) -> bool:
        """Whether there is something to see, and somebody takes it, or needs the samples of this rank."""
        context = self._context
        wanted = context.on_pictures is not None or not context.ranks.is_alone
        with_classes = isinstance(context.task, Classification | Segmentation)
        to_keep = context.job.config.logging.pictures if context.job.val_split is not None else 0
        return wanted and with_classes and to_keep > 0

    def batch_validated(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Pick samples of a batch."""
        if self._picked is None:
            measure = of_masks if self._has_masks else of_classes
            self._picked = PickedSamples(measure, OF_GROUP, np.concatenate([*self._choices().values()]))
        self._picked.add(outputs, batch)

    def validated(self, measured: ValidationResult, epoch: int, best: bool) -> None:
        """Put the pictures of all ranks together, and write them if it is time."""
        picked, self._picked = self._picked, None
        groups = self._groups(*(None, None) if picked is None else picked.take())
        self._show_worst_classes(measured)
        if self._context.on_pictures is None:
            return
        confusion = measured.confusion
        if confusion is not None and len(confusion) > _MOST_CONFUSED:
            confusion = None
        pictures = ValidationPictures(
            step=self._context.state.step,
            epoch=epoch,
            best_epoch=self._context.state.best.epoch,
            classes=self._classes,
            groups=groups,
            confusion=None if confusion is None else confusion.numpy(),
            keep=self._context.job.config.logging.pictures,
        )
        self._unwritten["last"] = pictures
        if best:
            self._unwritten["best"] = pictures
        if time.perf_counter() - self._ended_at >= _SHARE * self._cost_s:
            self._write()

    def run_ends(self) -> None:
        """Write what could not be written yet."""
        self._write()

    def run_stops(self) -> None:
        """Write what could not be written yet."""
        self._write()

    def _write(self) -> None:
        """Write the best pictures and the last ones, as far as they are not written."""
        context, began = self._context, time.perf_counter()
        if context.on_pictures is None:
            return
        for pictures in sorted({p.step: p for p in self._unwritten.values()}.values(), key=lambda p: p.step):
            path = context.on_pictures(replace(pictures, best_epoch=context.state.best.epoch))
            context.emit(
                ImagesGenerated(
                    step=context.state.step,
                    epoch=pictures.epoch,
                    path=path,
                    images=pictures.images,
                    seconds=time.perf_counter() - began,
                    what="predictions",
                )
            )
        self._unwritten = {}
        self._ended_at = time.perf_counter()
        self._cost_s = self._ended_at - began

    def _show_worst_classes(self, measured: ValidationResult) -> None:
        """Show the worst classes of this validation in the next one, if there are too many to show all."""
        if len(self._classes) > CLASSES_SHOWN:
            names = next(iter(worst_classes(measured.per_class, CLASSES_SHOWN).values()), {})
            self._shown, self._chosen = sorted(map(self._classes.index, names)), None

    @property
    def _has_masks(self) -> bool:
        return isinstance(self._context.task, Segmentation)

    @property
    def _classes(self) -> tuple[str, ...]:
        task = self._context.task
        assert isinstance(task, Classification | Segmentation), "else the hook is not active"
        return task.classes

    def _choices(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the indices of the samples that are the same at each validation, by group."""
        if self._chosen is None:
            job = self._context.job
            assert job.val_split is not None, "else the hook is not active"
            random = generator(RandomStream.PICTURES, job.config.training.seed)
            order = random.permutation(len(job.val_split))
            self._chosen = {RANDOM: order[:OF_GROUP]}
            if isinstance(job.val_split, LabelledSplit) and not self._has_masks:
                self._chosen[BY_CLASS] = _by_class(job.val_split.sample_labels, order, self._shown)
        return self._chosen

    def _groups(self, worst: PickedRows | None, wanted: PickedRows | None) -> dict[str, list[PicturedSample]]:
        """Return the samples of each group, of all ranks, which meet twice."""
        ranks = self._context.ranks
        ranked = ranks.gather([] if worst is None else worst.ranked)
        errors = {index: error for rank in ranked for error, index in rank}
        most = sorted(errors, key=lambda index: (-errors[index], index))[:OF_GROUP]
        own = {**self._pictured(worst, {*most}), **self._pictured(wanted, None)}
        found = {index: sample for rank in ranks.gather(own) for index, sample in rank.items()}
        groups = {WORST: most, **{name: chosen.tolist() for name, chosen in self._choices().items()}}
        return {
            name: [found[index] for index in indices if index in found] for name, indices in groups.items()
        }

    def _pictured(self, rows: PickedRows | None, which: set[int] | None) -> dict[int, PicturedSample]:
        """Return these samples of this rank by index; `which` is None: all."""
        if rows is None:
            return {}
        job, pixels_NHWC = self._context.job, visible(rows.images_NCHW, self._context.job.config.data)
        files, colours = job.val_loader.names(rows.indices_N), palette(self._classes)
        return {
            index: _sample(index, files[row], rows, row, pixels_NHWC[row], colours)
            for row, index in enumerate(rows.indices_N.tolist())
            if which is None or index in which
        }


def _sample(
    index: int, file: str, rows: PickedRows, row: int, pixels_HWC: Pixels, colours: Palette
) -> PicturedSample:
    error, truth, predicted, probability = rows.figures_N4[row].tolist()
    masks = rows.masks_N2HW[row]
    if masks.size:
        seam = np.full((len(pixels_HWC), SEAM, 3), _GREY, np.uint8)
        drawn = (part for mask_HW in masks for part in (seam, coloured(mask_HW, colours)))
        pixels_HWC = np.concatenate([pixels_HWC, *drawn], axis=1)
        return PicturedSample(index, file, error, None, None, None, pixels_HWC)
    return PicturedSample(index, file, error, int(truth), int(predicted), probability, pixels_HWC)


def _by_class(
    labels_N: npt.NDArray[np.int64], order: npt.NDArray[np.int64], shown: Iterable[int]
) -> npt.NDArray[np.int64]:
    """Return the first samples in `order` of each of the classes `shown`."""
    labels_N = labels_N[order]
    return np.concatenate([order[:0], *(order[labels_N == number][:OF_CLASS] for number in shown)])


def visible(images_NCHW: npt.NDArray[np.float32], data: DataConfig) -> Pixels:
    """Return normalised images as RGB pixels, [N, H, W, 3].

    With `data.bands = "all"` the first three bands are shown, or the first one in grey, each stretched
    between its percentiles of this image: it may have 16 bits, or be no photograph at all.
    """
    C = images_NCHW.shape[1]
    images_NCHW = images_NCHW[:, :3] if C >= 3 else images_NCHW[:, [0, 0, 0]]
    if data.bands == "rgb":
        mean, std = (data.mean, data.std) if data.mean and data.std else (IMAGENET.mean, IMAGENET.std)
        mean_C11, std_C11 = (np.array(values, np.float32)[:3, None, None] for values in (mean, std))
        values = images_NCHW * std_C11 + mean_C11
    else:
        finite = np.nan_to_num(images_NCHW, posinf=0.0, neginf=0.0)
        low, high = np.percentile(finite, _CLIPPED, axis=(2, 3), keepdims=True)
        values = (finite - low) / np.maximum(high - low, 1e-12)
    shown: Pixels = np.rint(255 * np.clip(np.nan_to_num(values), 0, 1)).astype(np.uint8)
    return shown.transpose(0, 2, 3, 1)
