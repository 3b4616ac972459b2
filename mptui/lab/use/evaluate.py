"""Measures a trained run on a set: its metrics, its worst samples, and the mistakes it was surest of."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from mptui.config.resolve import resolve
from mptui.config.schema import DataConfig
from mptui.data.batch import Batch
from mptui.data.dataset import JoinedSplit, MaskedSplit, RenumberedSplit
from mptui.data.kept_reading import KeptReading, read_again
from mptui.data.loader import Loader
from mptui.data.mask_classes import BINARY
from mptui.data.masks import opened_mask, survey
from mptui.data.open import open_dataset
from mptui.data.prepared import LAYOUT
from mptui.data.types import IGNORE, RGB, Dataset, Problem, Split
from mptui.engine.compile import Compiler, outputs_of
from mptui.engine.evaluate import ValidationResult, evaluate
from mptui.engine.micro_batches import Recovery, in_pieces, is_out_of_memory, release, rows_of
from mptui.errors import ConfigError, DataError, MemoryExhaustedError
from mptui.events import EpochFinished, Event, Validated, Warned
from mptui.io.files import absolute
from mptui.lab.use.forward_speed import forward_seconds
from mptui.lab.use.mirrored import AveragedNetwork, mirror_views
from mptui.lab.use.trained import Trained
from mptui.registry.names import SampleKind
from mptui.registry.tasks import VAL_LOSS
from mptui.runs.planning.build import LoaderMaker
from mptui.runs.store import journal
from mptui.runs.store.directory import CONFIG, read_summary
from mptui.runs.store.files import data_changes, kept_reading
from mptui.runs.store.journal import read_events
from mptui.tasks.base import Metrics, Task
from mptui.text import clean_name

# The course of a trained run, read from its files
# ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run.

    Attributes:
        epochs: Its epochs.
        validated: The validation at the checkpoint that is used, if there was one.
        precision: The precision that it was trained in; "": unknown.
        weights: What its weights were at the start, as `model.weights`; None: random.
    """

    epochs: list[EpochFinished]
    validated: Validated | None
    precision: str
    weights: str | None

    @property
    def measured(self) -> dict[str, float] | None:
        """The loss, as `val_loss`, and the metrics at the checkpoint; None if it was not validated."""
        found = self.validated
        return None if found is None else {VAL_LOSS: found.loss, **found.metrics}


def course_of(trained: Trained) -> Course:
    """Read the course of a run from its files; an unreadable journal has no epochs."""
    epochs: dict[int, EpochFinished] = {}
    validated = None
    with contextlib.suppress(OSError):
        for _, events in read_events(trained.run / journal.NAME, 0):
            for event in events:
                if isinstance(event, EpochFinished):
                    epochs[event.epoch] = event
                elif isinstance(event, Validated) and event.step == trained.step:
                    validated = event
    precision = read_summary(trained.run).get("precision", {}).get("used")
    config = resolve(str(trained.run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    return Course(
        [epochs[number] for number in sorted(epochs)], validated, str(precision or ""), config.model.weights
    )


# The samples that a trained run is measured on: its own validation set, or another set of its classes
# ----------------------------------------------------------------------------------------------------

_NAMED = 10
_NUMBERS = ("class_0", "class_1")


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """The samples of an evaluation.

    Attributes:
        dataset: The opened set, with the classes of the run.
        split: Its samples that are measured.
        part: Which they are: validation, or all.
        own: Whether it is the run's validation set, unchanged as far as is known.
    """

    dataset: Dataset
    split: Split
    part: str
    own: bool


def open_samples(
    trained: Trained,
    given: Mapping[str, Any],
    *,
    on_progress: Callable[[int, int], None],
    note: Callable[[str], None],
) -> EvaluationData:
    """Open the data of an evaluation.

    The run's own data is read as the run has read it. Of another set, the validation half is measured, or all
    of it if it has none.

    Args:
        trained: The run.
        given: Values of [data] that a person gave (name, path, download); empty: the run's own data.
        on_progress: Called with (checked files, all files).
        note: Called with warnings about the data.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing or unreadable, of another kind or pixel format, or has classes that the
            run lacks.
    """
    config = _settings(trained.config.data, given)
    own = (config.name, config.path) == (trained.config.data.name, trained.config.data.path)

    def opened(kept: KeptReading | None) -> Dataset:
        return open_dataset(
            config,
            kind=trained.config.model.reads(trained.plan.task),
            side=trained.preprocessing.geometry.side,
            seed=trained.config.split_seed,
            on_progress=on_progress,
            should_stop=lambda: False,
            on_warning=note,
            kept=kept,
        )

    before = kept_reading(trained.run, trained.config, trained.config) if own else None
    dataset, differs = read_again(opened, before)
    if differs:
        note(differs)
    if dataset.pixels != (trained_on := trained.preprocessing.stored or RGB):
        raise DataError(
            f"{clean_name(dataset.name)}: images have {dataset.pixels}, but the run has {trained_on}",
            hint="give --data images of the same bands and values",
        )
    whole = dataset.held_out and not own
    if own and (told := data_changes(trained.run, dataset)) is not None:
        note(f"the data of this run has changed since it was trained: {told}")
        own = False
    split: Split = JoinedSplit(dataset.train, dataset.val) if whole else dataset.val
    split = _with_classes_of_run(split, dataset, trained, note)
    dataset = replace(dataset, classes=trained.classes)
    return EvaluationData(dataset, split, "all samples" if whole else "validation", own)


def _settings(data: DataConfig, given: Mapping[str, Any]) -> DataConfig:
    """Return the data settings with what a person gave."""
    if given.get("path") is not None:
        given = {**given, "path": absolute(given["path"])}
    if given.get("name") is not None and given["name"] == data.name:
        given = {key: value for key, value in given.items() if key != "path"}  # the folder where it is stored
    return data.model_copy(update=dict(given))


def _with_classes_of_run(
    split: Split, dataset: Dataset, trained: Trained, note: Callable[[str], None]
) -> Split:
    """Return the split with its classes numbered as the run's."""
    ours = trained.classes
    theirs = _names_by_value(dataset, ours)
    if theirs != dataset.classes:
        note(f"masks of {dataset.name} have the values 0 and 1: they are {' and '.join(theirs)} of the run")
    if dataset.kind is SampleKind.IMAGE or theirs == ours:
        return split
    unknown = [name for name in theirs if name not in ours]
    missing = [name for name in ours if name not in theirs]
    if unknown:
        faults = [f"only in the data: {_listed(unknown)}"]
        faults += [f"only in the run: {_listed(missing)}"] if missing else []
        raise DataError(
            "\n".join([f"{dataset.name}: its classes differ from those of {trained.run.name}", *faults]),
            hint="give --data a set whose classes have the names of the run's",
        )
    if missing:
        note(f"{dataset.name} has no sample of these classes of the run: {_listed(missing)}")
    return RenumberedSplit(split, tuple(ours.index(name) for name in theirs))


def _names_by_value(dataset: Dataset, ours: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes of a set, those of masks of 0 and 1 by their values if the run's are named so.

    Such masks are background and foreground alone; beside others, 0 and 1 are the numbers of classes.
    """
    split, reading = dataset.val, dataset.reading
    if reading is not None and reading.layout == LAYOUT:  # it has numbered the values of its masks anew
        return dataset.classes
    may_be_values = dataset.classes == BINARY and {*_NUMBERS} <= {*ours}
    if not may_be_values or not isinstance(split, MaskedSplit):
        return dataset.classes
    for row in split.rows.tolist():
        with opened_mask(split.mask_paths[row]) as mask:
            mask.load()
            highest = max(survey(split.mask_paths[row], mask).codes)
        if highest:
            return _NUMBERS if highest == 1 else dataset.classes
    return dataset.classes


def _listed(names: list[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _NAMED else ""
    return ", ".join(map(clean_name, names[:_NAMED])) + more


# Measures each sample of an evaluation beside its metrics: its loss, and the classes that were confused
# ------------------------------------------------------------------------------------------------------
# Nothing waits for the device before the end.
#
# Shapes: B samples, K classes, H and W pixels.


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """Figures of the samples of a set, in their order.

    Attributes:
        indices: Index of each sample in the split; a sample may be there twice, in place of a broken one.
        losses: Its loss, as it would be of a set of this sample alone.
        truths: Its class; with masks, the class of the pixels that were most confused.
        predicted: The class predicted for these.
        confidence: The probability of the predicted class; with masks its sum over the pixels of this pair of
            classes, as a share of the valid pixels; 0 if no pixel is wrong.
    """

    indices: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    truths: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Figures:
    """Figures of one batch, on the device."""

    indices: npt.NDArray[np.int64]
    losses_B: torch.Tensor
    cells_B: torch.Tensor
    """True class x K + predicted class."""
    confidence_B: torch.Tensor


@dataclass(slots=True)
class ObservedMetrics(Metrics):
    """The metrics of a task, and figures of each sample.

    Args:
        inner: The metrics.
        task: The task, whose loss is measured sample by sample.
        num_classes: Number of classes, K.
    """

    inner: Metrics
    task: Task
    num_classes: int
    _batches: list[_Figures] = field(default_factory=list)

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        figures = self._figures(outputs, batch)  # before the metrics: if memory is full, nothing was added
        self.inner.update(outputs, batch)
        self._batches.append(figures)

    @override
    def compute(self) -> dict[str, float]:
        return self.inner.compute()

    @override
    def per_class(self) -> dict[str, dict[str, float | None]]:
        return self.inner.per_class()

    @override
    def confusion(self) -> torch.Tensor | None:
        return self.inner.confusion()

    @override
    def reset(self) -> None:
        self.inner.reset()
        self._batches.clear()

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Figures of samples are not saved."""
        return self.inner.state_dict()

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.inner.load_state_dict(state)

    def samples(self) -> SampleFigures:
        """Return the figures of all samples. Waits for the device."""
        cells = _on_host([each.cells_B for each in self._batches]).astype(np.int64)
        return SampleFigures(
            indices=np.concatenate([each.indices for each in self._batches]),
            losses=_on_host([each.losses_B for each in self._batches]),
            truths=cells // self.num_classes,
            predicted=cells % self.num_classes,
            confidence=_on_host([each.confidence_B for each in self._batches]),
        )

    def _figures(self, outputs: torch.Tensor, batch: Batch) -> _Figures:
        cells_B, confidence_B = _confused(
            outputs[: batch.size], batch.targets[: batch.size], self.num_classes
        )
        return _Figures(
            batch.sample_indices[: batch.size], _losses(self.task, outputs, batch), cells_B, confidence_B
        )


def _losses(task: Task, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the loss of each sample, as losses_B."""
    sums_B2 = torch.stack(
        [task.loss_sums(outputs[row : row + 1], rows_of(batch, row, row + 1)) for row in range(batch.size)]
    )
    valid_B = (batch.targets[: batch.size].reshape(batch.size, -1) != IGNORE).sum(dim=1).clamp(min=1)
    return sums_B2[:, 0] / valid_B + sums_B2[:, 1]


def _confused(
    outputs: torch.Tensor, targets: torch.Tensor, num_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most confused pair of classes of each sample as cells_B, and its confidence_B."""
    rows = len(targets)
    are_scores = outputs.ndim > 1 and outputs.shape[1] == num_classes
    if not are_scores or targets.is_floating_point():
        return torch.zeros(rows, dtype=torch.int64, device=targets.device), torch.zeros(
            rows, device=targets.device
        )
    confidence, predicted = outputs.float().softmax(dim=1).max(dim=1)
    cells = targets.clamp(min=0) * num_classes + predicted
    if targets.ndim == 1:
        return cells, confidence
    wrong = confidence * ((targets != predicted) & (targets != IGNORE))
    pairs = [_heaviest(*each, num_classes) for each in zip(cells, wrong, targets, strict=True)]
    cells_B, shares_B = zip(*pairs, strict=True)
    return torch.stack(cells_B), torch.stack(shares_B)


def _heaviest(
    cells_HW: torch.Tensor, wrong_HW: torch.Tensor, targets_HW: torch.Tensor, num_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pair of classes whose wrong pixels have the largest sum, and the sum per valid pixel."""
    sums = torch.zeros(num_classes**2, device=wrong_HW.device)
    sums.scatter_add_(0, cells_HW.flatten(), wrong_HW.flatten())
    most, cell = sums.max(dim=0)
    return cell, most / (targets_HW != IGNORE).sum().clamp(min=1)


def _on_host(tensors: list[torch.Tensor]) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = torch.cat(tensors).cpu().double().numpy()
    return values


# Measures a trained run on a set: its metrics, its worst samples, and the mistakes it was surest of
# --------------------------------------------------------------------------------------------------
# On the run's own validation set, the figures are those of the run, to the bit: the same batches,
# precision, layout, EMA and compiled code.

OnProgress = Callable[[int, int], None]
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ListedSample:
    """A sample that is listed by name: its loss, and what was predicted (None without classes).

    `confidence` is the probability of the predicted class; with masks the sum of it over the pixels of this
    pair of classes, as a share of the valid pixels.
    """

    name: str
    loss: float
    truth: str | None
    predicted: str | None
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        data: What was measured.
        result: Loss and metrics.
        confusion: The confusion matrix, rows are true classes; None if the task has none.
        worst: Samples of the highest loss, the highest first.
        confused: Wrong predictions of the highest confidence, the highest first.
        problems: Files that could not be read.
        recorded: Loss (as `val_loss`) and metrics that the run measured at this checkpoint on this data; None
            if it did not, or the data is another.
        limit: Maximum samples at once, if a batch did not fit into memory.
        mirrored: Over which views the predictions are averaged; None: each image is used as it is.
    """

    data: EvaluationData
    result: ValidationResult
    confusion: torch.Tensor | None
    worst: list[ListedSample]
    confused: list[ListedSample]
    problems: list[Problem]
    recorded: dict[str, float] | None
    limit: int | None
    mirrored: "Mirrored | None" = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What averaging over mirror images costs and brings.

    Attributes:
        views: Names of the views, `MirrorView.name`.
        alone: Loss and metrics of the images as they are.
        images_per_second: Of forward passes with all views, the median.
        images_per_second_alone: The same of the images as they are.
    """

    views: list[str]
    alone: ValidationResult
    images_per_second: float
    images_per_second_alone: float


def evaluate_run(
    trained: Trained,
    given: Mapping[str, Any],
    *,
    listed: int,
    on_progress: OnProgress,
    note: Note,
    mirror: bool = False,
) -> Evaluation:
    """Evaluate a trained run.

    Args:
        trained: The run.
        given: Values of [data] that a person gave; empty: the run's own data.
        listed: Number of samples to list by name.
        on_progress: Called with (checked files, all files), then with (batches done, all batches).
        note: Called with what a person should know.
        mirror: Average the probabilities over `mirror_views`, and measure the images as they are too.

    Raises:
        ConfigError: There is no set of that name, or nothing to average.
        DataError: The data is missing or unreadable, or has other classes.
        MemoryExhaustedError: Not even one sample fits into memory.
    """
    averaged = _averaged(trained) if mirror else None
    data = open_samples(trained, given, on_progress=on_progress, note=note)
    problems = list(data.dataset.problems)

    def tell(event: Event) -> None:
        if isinstance(event, Warned):
            note(event.message)

    maker = LoaderMaker(trained.plan, data.dataset, tell, problems.append, lambda: None)
    with maker.make(data.split, train=False) as loader:
        observed = ObservedMetrics(trained.task.metrics(trained.device), trained.task, len(trained.classes))
        measured = _measured(trained, loader, observed, on_progress, averaged=averaged, note=note)
        samples = observed.samples()
        listing = _Listing(trained, loader, samples)
        losses = np.where(np.isnan(samples.losses), math.inf, samples.losses)  # NaN is the worst
        is_wrong = (samples.truths != samples.predicted) & (samples.confidence > 0)
        return Evaluation(
            data=data,
            result=measured.result,
            confusion=observed.confusion(),
            worst=listing.first(losses, listed),
            confused=listing.first(np.where(is_wrong, samples.confidence, -math.inf), listed),
            problems=problems,
            recorded=course_of(trained).measured if data.own else None,
            limit=measured.limit,
            mirrored=measured.mirrored,
        )


def _averaged(trained: Trained) -> AveragedNetwork:
    if trained.config.model.task is not None:
        raise ConfigError(
            f"--mirror: {trained.config.model.task} may take other outputs than scores of classes",
            hint="leave --mirror out",
        )
    return AveragedNetwork(trained.model, mirror_views(trained))


class _Measured(NamedTuple):
    result: ValidationResult
    limit: int | None
    """Maximum samples at once, if a batch did not fit into memory."""
    mirrored: Mirrored | None


def _measured(
    trained: Trained,
    loader: Loader,
    metrics: ObservedMetrics,
    on_progress: OnProgress,
    *,
    averaged: AveragedNetwork | None,
    note: Note,
) -> _Measured:
    """Evaluate, compiled if the run was."""
    compiler = Compiler(
        trained.model,
        trained.config.speed.compile,
        trained.device,
        forced=False,
        steps=0,
        warn=lambda _, message: note(message),
    )
    compiler.load_state_dict(trained.state)
    batches = HalvingBatches(
        trained.device,
        note,
        lambda error: (lambda: None) if compiler.gave_up_on(error, "validating") else None,
    )

    def measure(network: AveragedNetwork | None, metrics: Metrics | None) -> ValidationResult:
        return evaluate(
            trained.model,
            trained.task,
            loader,
            trained.precision,
            device=trained.device,
            on_progress=lambda progress: on_progress(progress.done, progress.total),
            check_stop=lambda: None,
            in_pieces=batches,
            outputs_stay=not compiler.static_shapes,
            metrics=metrics,
            network=network,
        )

    try:
        if averaged is None:
            return _Measured(measure(None, metrics), batches.limit, None)
        alone, result = measure(None, None), measure(averaged, metrics)
        one, all_views = _speeds(trained, loader, [trained.model, averaged], batches.limit)
    finally:
        compiler.undo()
    names = [view.name for view in averaged.views]
    return _Measured(result, batches.limit, Mirrored(names, alone, all_views, one))


@torch.no_grad()
def _speeds(
    trained: Trained, loader: Loader, networks: Sequence[AveragedNetwork | torch.nn.Module], limit: int | None
) -> list[float]:
    """Return images a second of each in forward passes on the first batch, or on as much of it as fits."""
    windows = loader.windows(epoch=0, accumulate=1)  # a batch lives as long as its pass
    batch = next(iter(next(windows)))
    batch = rows_of(batch, 0, min(batch.size, limit or batch.size))
    with trained.precision.forward_context():
        passes = [partial(outputs_of, network, batch, model=trained.model) for network in networks]
        return [batch.size / forward_seconds(each, trained.device) for each in passes]


@dataclass(frozen=True, slots=True)
class _Listing:
    """Names samples and their classes."""

    trained: Trained
    loader: Loader
    samples: SampleFigures

    def of(self, row: int) -> ListedSample:
        """Return the sample at a row of the figures."""
        samples, classes = self.samples, self.trained.classes
        loss = float(samples.losses[row])
        (name,) = self.loader.names(samples.indices[row : row + 1])
        confidence = float(samples.confidence[row])
        if self.trained.preprocessing.kind is SampleKind.IMAGE or not confidence > 0:
            return ListedSample(name, loss, None, None, None)
        truth, predicted = classes[int(samples.truths[row])], classes[int(samples.predicted[row])]
        return ListedSample(name, loss, truth, predicted, confidence)

    def first(self, figures: npt.NDArray[np.float64], count: int) -> list[ListedSample]:
        """Return the samples of the highest finite figures; each once, also if it replaced a broken one."""
        rows = np.argsort(-figures, kind="stable")
        _, places = np.unique(self.samples.indices[rows], return_index=True)
        chosen = rows[np.sort(places)]
        return [self.of(int(row)) for row in chosen[:count] if figures[row] > -math.inf]


# Inference in smaller parts where a batch does not fit into memory; results do not depend on it
# ----------------------------------------------------------------------------------------------


class HalvingBatches:
    """Computes batches, from the first that does not fit on in parts of half the size.

    Args:
        device: The device.
        note: Called once, if a batch did not fit.
        recovery_for: Other recoveries, which come first: returns None if there is none.

    Attributes:
        limit: Maximum samples at once; None: whole batches.
    """

    def __init__(
        self,
        device: torch.device,
        note: Callable[[str], None],
        recovery_for: Callable[[Exception], Recovery | None] = lambda error: None,
    ) -> None:
        self.limit: int | None = None
        self._device = device
        self._note = note
        self._others = recovery_for

    def __call__(self, batch: Batch, compute: Callable[[Batch], None]) -> None:
        """Call `compute` with the batch or its parts.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        in_pieces(batch, compute, limit=lambda: self.limit, recovery_for=self._recovery_for)

    def _recovery_for(self, error: Exception, rows: int) -> Recovery | None:
        if (recovery := self._others(error)) is not None or not is_out_of_memory(error):
            return recovery
        size = min(self.limit or rows, rows)
        if size == 1:
            raise MemoryExhaustedError(
                "out of memory with a single image",
                hint="end other programs on the device, or use another: --device cpu",
            ) from error
        return partial(self._halve, size)

    def _halve(self, size: int) -> None:
        release(self._device)
        if self.limit is None:
            self._note(f"out of memory with {size} images at once: batches are computed in smaller parts")
        self.limit = -(-size // 2)


# Improved precision and recall of made images (Kynkäänniemi et al. 2019, https://arxiv.org/abs/1904.06991)
# ---------------------------------------------------------------------------------------------------------
# Shapes: N points of one set, M of another, R of a part, D features.

NEIGHBOURS = 3
"""k, as in the paper."""
_ROWS = 1024
"""Points whose distances to a set are in memory at once."""


class PrecisionRecall(NamedTuple):
    """Shares of 1: of the made images that look real, and of the real ones that could have been made."""

    precision: float
    recall: float


def precision_recall(real_ND: torch.Tensor, made_MD: torch.Tensor) -> PrecisionRecall:
    """Compare two sets of features, of as many images each: the radii depend on the number.

    Around each point of a set is a sphere that reaches its k-th nearest neighbour in it. Precision is the
    share of the made points inside a sphere of the real ones, recall that of the real ones inside a sphere
    of the made ones. Each set needs more than k points.
    """
    return PrecisionRecall(_share_inside(made_MD, real_ND), _share_inside(real_ND, made_MD))


def _share_inside(points_MD: torch.Tensor, set_ND: torch.Tensor) -> float:
    # the nearest one of a point is itself
    parts = torch.split(set_ND, _ROWS)
    radii_N = torch.cat([_distances(part_RD, set_ND).kthvalue(NEIGHBOURS + 1).values for part_RD in parts])
    parts = torch.split(points_MD, _ROWS)
    inside = [(_distances(part_RD, set_ND) <= radii_N).any(dim=1) for part_RD in parts]
    return float(torch.cat(inside).double().mean())


def _distances(part_RD: torch.Tensor, set_ND: torch.Tensor) -> torch.Tensor:
    # by differences: as a product of matrices, those of near points are all rounding
    return torch.cdist(part_RD, set_ND, compute_mode="donot_use_mm_for_euclid_dist")
