"""Pictures of each validation: which samples, what is predicted of them, and images of a diffusion model."""

import contextlib
import math
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from typing_extensions import override

from mptui.config.schema import DataConfig
from mptui.data.batch import Batch, to_device
from mptui.data.noise import Noising
from mptui.data.pictures import (
    BY_CLASS,
    RANDOM,
    SEAM,
    WORST,
    ClassShare,
    Palette,
    PicturedSample,
    Pixels,
    ValidationPictures,
    bright,
    coloured,
    errors_of,
)
from mptui.data.rng import RandomStream, generator
from mptui.data.transforms import HALF, IMAGENET, Normalization
from mptui.data.types import IGNORE
from mptui.engine.context import TrainContext
from mptui.engine.evaluate import PROGRESS_S, ValidationResult, in_eval_mode, worst_classes
from mptui.engine.guards.memory import compute_in_pieces
from mptui.engine.hooks import Hook
from mptui.events import ImagesGenerated, Progress
from mptui.tasks.classification import Classification
from mptui.tasks.diffusion import Diffusion
from mptui.tasks.image_sampler import ImageSampler
from mptui.tasks.segmentation import Segmentation, predicted_classes

OnImages = Callable[[int, Pixels], str]
OnPictures = Callable[[ValidationPictures], str]

# Picks samples of a validation on the device: the worst ones, and some that are the same at each validation
# ----------------------------------------------------------------------------------------------------------
# Of each batch, only the images of picked samples are kept, made small. Nothing waits for the device before
# the end.
#
# Shapes: B samples, K classes, S of them shown, N picked samples, F figures, C channels, H and W pixels.

SIDE = 96
"""Largest side of a picture in pixels."""

OF_CLASS, TOP = 4, 3
"""Numbers of the worst samples of a class, and of the most probable classes of a sample that are told."""

_MERGED = 128
"""Samples that are kept before the worst of them are chosen: a call costs more than its work."""

_ERROR, _TRUTH = 0, 1
"""Columns of figures; the next ones are the most probable classes, each followed by its probability."""
_NO_CLASS = -1.0
"""True class of a row that fills the place of a sample that is not there."""

Figures = tuple[torch.Tensor, torch.Tensor | None]
"""figures_BF (with masks only the errors), and with masks the predicted ones_BHW."""
Measure = Callable[[torch.Tensor, torch.Tensor], Figures]
"""Returns the figures of samples, given what the network returned for them and their targets."""


def of_classes(logits_BK: torch.Tensor, targets_B: torch.Tensor) -> Figures:
    """Measure images in classes: the error is the cross-entropy."""
    log_p_BK = logits_BK.float().log_softmax(dim=1)
    errors_B1 = -log_p_BK.gather(1, targets_B[:, None])
    highest, classes = log_p_BK.topk(min(TOP, log_p_BK.shape[1]), dim=1)
    told = torch.stack([classes.float(), highest.exp()], dim=2).flatten(1)
    return torch.cat([errors_B1, targets_B[:, None].float(), told], dim=1), None


def of_masks(logits_BKHW: torch.Tensor, targets_BHW: torch.Tensor) -> Figures:
    """Measure images with masks: the error is the share of valid pixels of a wrong class."""
    predicted_BHW = predicted_classes(logits_BKHW)
    valid_BHW = targets_BHW != IGNORE
    wrong_B = ((predicted_BHW != targets_BHW) & valid_BHW).sum(dim=(1, 2))
    errors_B = wrong_B / valid_BHW.sum(dim=(1, 2)).clamp(min=1)
    return errors_B[:, None], predicted_BHW


@dataclass(frozen=True, slots=True)
class _Rows:
    """Picked samples on the device: their positions among all seen ones, figures, small images and masks."""

    positions_N: torch.Tensor
    figures_NF: torch.Tensor
    images_NCHW: torch.Tensor
    masks_N2HW: torch.Tensor
    """The mask and the prediction, int16; of images in classes [N, 0]."""

    @property
    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.positions_N, self.figures_NF, self.images_NCHW, self.masks_N2HW

    def at(self, rows_N: torch.Tensor) -> "_Rows":
        """Return some of the rows."""
        return _Rows(*(each.index_select(0, rows_N) for each in self._tensors))

    @classmethod
    def joined(cls, parts: Sequence["_Rows"]) -> "_Rows":
        """Return the rows of all `parts`."""
        return cls(*map(torch.cat, zip(*map(operator.attrgetter("_tensors"), parts), strict=True)))

    def on_host(self, indices: npt.NDArray[np.int64]) -> "PickedRows":
        """Return the rows in host memory, given the index of the sample at each position. Syncs."""
        arrays: list[npt.NDArray[Any]] = [each.cpu().numpy() for each in self._tensors]
        is_there = (arrays[1][:, _TRUTH : _TRUTH + 1] != _NO_CLASS).all(axis=1)
        arrays = [array[is_there] for array in arrays]
        return PickedRows(indices[arrays[0]], *arrays[1:])


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Picked samples in host memory; a sample may be there twice, in place of a broken one.

    Attributes:
        indices_N: Index of each sample in the validation set.
        figures_NF: Error, true class, and the most probable classes, each with its probability.
        images_NCHW: The images, as the network sees them, at most `SIDE` pixels wide and high; float32.
        masks_N2HW: The mask and the prediction; of images in classes [N, 0].
    """

    indices_N: npt.NDArray[np.int64]
    figures_NF: npt.NDArray[np.float32]
    images_NCHW: npt.NDArray[np.float32]
    masks_N2HW: npt.NDArray[np.int16]

    @property
    def ranked(self) -> list[tuple[float, int]]:
        """The error and the index of each sample; NaN is infinite."""
        errors = np.nan_to_num(self.figures_NF[:, _ERROR], nan=np.inf, posinf=np.inf)
        return list(zip(errors.tolist(), self.indices_N.tolist(), strict=True))

    @property
    def classes(self) -> list[int]:
        """The true class of each sample."""
        return [int(number) for number in self.figures_NF[:, _TRUTH]]


At = Callable[[torch.Tensor], _Rows]
"""Returns the rows at some places."""


class _Worst:
    """The rows of the highest error so far; NaN is the highest.

    Args:
        count: Largest number of rows.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._parts: list[_Rows] = []

    def choose(self, figures_BF: torch.Tensor, at: At) -> _Rows:
        """Return the worst rows of those with these figures."""
        return at(figures_BF[:, _ERROR].topk(min(self.count, len(figures_BF))).indices)

    def add(self, rows: _Rows) -> None:
        """Add rows that were chosen of a batch."""
        self._parts.append(rows)
        if sum(len(part.positions_N) for part in self._parts) >= max(_MERGED, 2 * self.count):
            self._parts = [self.rows()]

    def rows(self) -> _Rows:
        """Return the worst of all."""
        rows = _Rows.joined(self._parts)
        return self.choose(rows.figures_NF, rows.at)


class _WorstOfClasses(_Worst):
    """The rows of the highest error of each class.

    Args:
        classes_S: The classes.
    """

    def __init__(self, classes_S: torch.Tensor) -> None:
        super().__init__(OF_CLASS * len(classes_S))
        self._classes_S = classes_S

    @override
    def choose(self, figures_BF: torch.Tensor, at: At) -> _Rows:
        if len(figures_BF) <= self.count:
            return at(torch.arange(len(figures_BF), device=figures_BF.device))
        is_of_SB = figures_BF[:, _TRUTH] == self._classes_S[:, None]
        errors_SB = torch.where(is_of_SB, figures_BF[:, _ERROR], -math.inf)
        highest, places = errors_SB.topk(OF_CLASS, dim=1)
        rows = at(places.flatten())
        # of a class with fewer samples: another one, which may be there twice then
        rows.figures_NF[:, _TRUTH].masked_fill_(highest.flatten() == -math.inf, _NO_CLASS)
        return rows


class PickedSamples:
    """The picked samples of one validation.

    Args:
        measure: Measures the samples of a batch.
        worst: Number of samples of the highest error.
        chosen: Indices of the samples that are picked whatever their error.
        classes_S: The classes of which the worst samples are picked, too, on the device.
    """

    def __init__(
        self, measure: Measure, worst: int, chosen: npt.NDArray[np.int64], classes_S: torch.Tensor
    ) -> None:
        self._measure = measure
        self._worst = [_Worst(worst), *([_WorstOfClasses(classes_S)] if len(classes_S) else [])]
        self._chosen = chosen
        self._wanted: list[_Rows] = []
        self._indices: list[npt.NDArray[np.int64]] = []
        self._seen = 0

    def add(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Look at a batch. A batch that fails for lack of memory comes again. Never syncs."""
        size = batch.size
        outputs, targets = outputs.detach()[:size], batch.targets[:size]
        figures_BF, masks = self._measure(outputs, targets)
        small_BCHW = None
        if size <= sum(kept.count for kept in self._worst):  # most of them are picked, and some twice
            small_BCHW = _small(batch.images_BCHW[:size])

        def rows(rows_N: torch.Tensor) -> _Rows:
            if small_BCHW is None:
                images_NCHW = _small(batch.images_BCHW.index_select(0, rows_N))
            else:
                images_NCHW = small_BCHW.index_select(0, rows_N)
            figures_NF = figures_BF.index_select(0, rows_N)
            both = figures_NF.new_empty(len(rows_N), 0, dtype=torch.int16)
            if masks is not None:
                pair = (targets.index_select(0, rows_N), masks.index_select(0, rows_N))
                both = torch.stack([_nearest(each.short()) for each in pair], dim=1)
            return _Rows(rows_N + self._seen, figures_NF, images_NCHW, both)

        worst = [kept.choose(figures_BF, rows) for kept in self._worst]
        places = np.flatnonzero(np.isin(batch.sample_indices, self._chosen))
        if len(places):
            self._wanted.append(rows(to_device(places, figures_BF.device)))
        for kept, part in zip(self._worst, worst, strict=True):
            kept.add(part)
        self._indices.append(batch.sample_indices.copy())
        self._seen += size

    def take(self) -> tuple[PickedRows | None, PickedRows | None, PickedRows | None]:
        """Return the worst samples, those of each class, and the chosen ones; None for none. Syncs."""
        if not self._indices:
            return None, None, None
        indices = np.concatenate(self._indices)
        worst, of_classes = [*(kept.rows().on_host(indices) for kept in self._worst), None][:2]
        wanted = _Rows.joined(self._wanted).on_host(indices) if self._wanted else None
        return worst, of_classes, wanted


def _small(images_NCHW: torch.Tensor) -> torch.Tensor:
    """Scale images down by a whole factor, to at most `SIDE` pixels."""
    factor = _factor(images_NCHW)
    return F.avg_pool2d(images_NCHW.float(), factor) if factor > 1 else images_NCHW.float()


def _nearest(masks_NHW: torch.Tensor) -> torch.Tensor:
    """Scale masks as `_small` scales their images; each pixel keeps a class that is there."""
    factor = _factor(masks_NHW)
    height, width = (length // factor * factor for length in masks_NHW.shape[1:])
    return masks_NHW[:, factor // 2 : height : factor, factor // 2 : width : factor]


def _factor(images: torch.Tensor) -> int:
    return -(-max(images.shape[-2:]) // SIDE)


# Pictures of each validation, for people to look at: what the network predicts of which samples
# ----------------------------------------------------------------------------------------------
# Shapes: N samples, C channels, H and W pixels.

OF_GROUP = 16
"""Number of the worst samples, and of the random ones."""
CLASSES_SHOWN = 16
"""Largest number of classes with their worst samples; the others are not pictured by class."""
_GREY = 128
"""Brightness of the line between an image and its masks."""
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

    def __init__(self, context: TrainContext, *, on_pictures: OnPictures | None) -> None:
        self._context = context
        self._on_pictures = on_pictures
        self._picked: PickedSamples | None = None
        self._random: npt.NDArray[np.int64] | None = None
        self._shown: Sequence[int] = range(CLASSES_SHOWN)
        self._unwritten: dict[str, ValidationPictures] = {}
        self._cost_s = 0.0
        self._ended_at = -float("inf")

    @property
    def active(self) -> bool:
        """Whether there is something to see, and somebody takes it, or needs the samples of this rank."""
        context = self._context
        wanted = self._on_pictures is not None or not context.ranks.is_alone
        with_classes = isinstance(context.task, Classification | Segmentation)
        to_keep = context.job.config.logging.pictures if context.job.val_split is not None else 0
        return wanted and with_classes and to_keep > 0

    def batch_validated(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Pick samples of a batch."""
        if self._picked is None:
            measure = of_masks if self._has_masks else of_classes
            shown = np.array([] if self._has_masks else self._shown, np.float32)
            classes_S = to_device(shown, self._context.device)
            self._picked = PickedSamples(measure, OF_GROUP, self._random_indices(), classes_S)
        self._picked.add(outputs, batch)

    def validated(self, measured: ValidationResult, epoch: int, best: bool) -> None:
        """Put the pictures of all ranks together, and write them if it is time."""
        picked, self._picked = self._picked, None
        groups = self._groups(*(None, None, None) if picked is None else picked.take())
        self._show_worst_classes(measured)
        if self._on_pictures is None:
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
        if self._on_pictures is None:
            return
        for pictures in sorted({p.step: p for p in self._unwritten.values()}.values(), key=lambda p: p.step):
            path = self._on_pictures(replace(pictures, best_epoch=context.state.best.epoch))
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
            self._shown = sorted(map(self._classes.index, names))

    @property
    def _has_masks(self) -> bool:
        return isinstance(self._context.task, Segmentation)

    @property
    def _classes(self) -> tuple[str, ...]:
        task = self._context.task
        assert isinstance(task, Classification | Segmentation), "else the hook is not active"
        return task.classes

    def _random_indices(self) -> npt.NDArray[np.int64]:
        """Return the indices of the samples that are the same at each validation."""
        if self._random is None:
            job = self._context.job
            assert job.val_split is not None, "else the hook is not active"
            random = generator(RandomStream.PICTURES, job.config.training.seed)
            self._random = random.permutation(len(job.val_split))[:OF_GROUP]
        return self._random

    def _groups(
        self, worst: PickedRows | None, of_classes: PickedRows | None, wanted: PickedRows | None
    ) -> dict[str, list[PicturedSample]]:
        """Return the samples of each group, of all ranks, which meet twice."""
        ranks = self._context.ranks
        ranked = ranks.gather(([] if worst is None else worst.ranked, _by_class(of_classes)))
        groups = {
            WORST: _most([sample for own, _ in ranked for sample in own], OF_GROUP),
            RANDOM: self._random_indices().tolist(),
        }
        if not self._has_masks:
            groups[BY_CLASS] = _worst_of_each([by_class for _, by_class in ranked], self._shown)
        named = {*groups[WORST], *groups.get(BY_CLASS, ())}
        own = self._pictured(wanted, None)
        for rows in (worst, of_classes):
            own |= self._pictured(rows, named)
        found = {index: sample for rank in ranks.gather(own) for index, sample in rank.items()}
        return {
            name: [found[index] for index in indices if index in found] for name, indices in groups.items()
        }

    def _pictured(self, rows: PickedRows | None, which: set[int] | None) -> dict[int, PicturedSample]:
        """Return these samples of this rank by index; `which` is None: all."""
        if rows is None:
            return {}
        job, pixels_NHWC = self._context.job, visible(rows.images_NCHW, self._context.job.config.data)
        files, colours = job.val_loader.names(rows.indices_N), bright(self._classes)
        return {
            index: _sample(
                index,
                files[row],
                rows,
                row,
                pixels_HWC=pixels_NHWC[row],
                colours=colours,
                classes=self._classes,
            )
            for row, index in enumerate(rows.indices_N.tolist())
            if which is None or index in which
        }


def _sample(
    index: int,
    file: str,
    rows: PickedRows,
    row: int,
    *,
    pixels_HWC: Pixels,
    colours: Palette,
    classes: Sequence[str],
) -> PicturedSample:
    error, *figures = rows.figures_NF[row].tolist()
    masks = rows.masks_N2HW[row]
    if masks.size:
        seam = np.full((len(pixels_HWC), SEAM, 3), _GREY, np.uint8)
        truth_HW, predicted_HW = masks
        errors_HW3 = errors_of(truth_HW, predicted_HW, classes)
        drawn = [coloured(truth_HW, colours), coloured(predicted_HW, colours), errors_HW3]
        pixels_HWC = np.concatenate([pixels_HWC, *(each for part in drawn for each in (seam, part))], axis=1)
        return PicturedSample(index, file, error, None, None, None, pixels_HWC)
    truth, *told = figures
    top = [ClassShare(int(number), share) for number, share in zip(told[::2], told[1::2], strict=True)]
    first = top[0]
    return PicturedSample(
        index, file, error, int(truth), first.number, first.probability, pixels_HWC, top=top
    )


Ranked = list[tuple[float, int]]
"""The error and the index of samples."""


def _most(ranked: Ranked, count: int) -> list[int]:
    """Return the indices of the highest errors."""
    return [index for _, index in sorted({*ranked}, key=lambda each: (-each[0], each[1]))[:count]]


def _by_class(rows: PickedRows | None) -> dict[int, Ranked]:
    """Return the samples of each class."""
    found: dict[int, Ranked] = {}
    if rows is not None:
        for number, sample in zip(rows.classes, rows.ranked, strict=True):
            found.setdefault(number, []).append(sample)
    return found


def _worst_of_each(ranks: Sequence[dict[int, Ranked]], shown: Iterable[int]) -> list[int]:
    """Return the indices of the worst samples of each class, those of the worst class first."""
    of_class = [[sample for rank in ranks for sample in rank.get(number, ())] for number in shown]
    worst_first = sorted(filter(None, of_class), key=max, reverse=True)
    return [index for samples in worst_first for index in _most(samples, OF_CLASS)]


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


# Makes images after validations of a diffusion model, for people to look at
# --------------------------------------------------------------------------

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

    def __init__(self, context: TrainContext, *, on_images: OnImages | None) -> None:
        self._context = context
        self._on_images = on_images
        self._cost_s = 0.0
        self._ended_at = -math.inf
        self._last_step = -1

    @property
    def active(self) -> bool:
        """Whether the network makes images, and somebody takes them, or needs the weights of this process."""
        context = self._context
        wanted = self._on_images is not None or context.job.is_sharded
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
            context.parts.replica.full_weights(),
            in_eval_mode(context.model),
        ):
            if self._on_images is not None:
                self._emit(self._on_images, began)
            self._last_step = context.state.step
        self._ended_at = time.perf_counter()
        self._cost_s = self._ended_at - began
        context.enter(before)
        context.reporter.restart_clock()

    def _emit(self, on_images: OnImages, began: float) -> None:
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
            batch = context.task.dummy_batch(torch.zeros(size, 1, 1, 1))
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
