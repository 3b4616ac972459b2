"""Measures a trained run on a set: its metrics, its worst samples, and the mistakes it was surest of.

On the run's own validation set, the figures are those of the run, to the bit: the same batches, precision,
layout, EMA and compiled code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.types import Problem
from mptui.data.loading.loader import Loader
from mptui.engine.compile.policy import Compiler
from mptui.engine.evaluate import ValidationResult, evaluate
from mptui.events import Event, Warned
from mptui.lab.use.course import course_of
from mptui.lab.use.evaluation.evaluation_data import EvaluationData, open_samples
from mptui.lab.use.evaluation.observed import ObservedMetrics, SampleFigures
from mptui.lab.use.halving import HalvingBatches
from mptui.lab.use.trained import Trained
from mptui.registry.samples import SampleKind
from mptui.runs.planning.build import LoaderMaker

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
    """

    data: EvaluationData
    result: ValidationResult
    confusion: torch.Tensor | None
    worst: list[ListedSample]
    confused: list[ListedSample]
    problems: list[Problem]
    recorded: dict[str, float] | None
    limit: int | None


def evaluate_run(
    trained: Trained,
    given: Mapping[str, Any],
    *,
    listed: int,
    on_progress: OnProgress,
    note: Note,
) -> Evaluation:
    """Evaluate a trained run.

    Args:
        trained: The run.
        given: Values of [data] that a person gave; empty: the run's own data.
        listed: Number of samples to list by name.
        on_progress: Called with (checked files, all files), then with (batches done, all batches).
        note: Called with what a person should know.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing or unreadable, or has other classes.
        MemoryExhaustedError: Not even one sample fits into memory.
    """
    data = open_samples(trained, given, on_progress=on_progress, note=note)
    problems = list(data.dataset.problems)

    def tell(event: Event) -> None:
        if isinstance(event, Warned):
            note(event.message)

    maker = LoaderMaker(trained.plan, data.dataset, tell, problems.append, lambda: None)
    with maker.make(data.split, train=False) as loader:
        observed = ObservedMetrics(trained.task.metrics(trained.device), trained.task, len(trained.classes))
        result, limit = _measured(trained, loader, observed, on_progress, note)
        samples = observed.samples()
        listing = _Listing(trained, loader, samples)
        losses = np.where(np.isnan(samples.losses), math.inf, samples.losses)  # NaN is the worst
        is_wrong = (samples.truths != samples.predicted) & (samples.confidence > 0)
        return Evaluation(
            data=data,
            result=result,
            confusion=observed.confusion(),
            worst=listing.first(losses, listed),
            confused=listing.first(np.where(is_wrong, samples.confidence, -math.inf), listed),
            problems=problems,
            recorded=course_of(trained).measured if data.own else None,
            limit=limit,
        )


def _measured(
    trained: Trained, loader: Loader, metrics: ObservedMetrics, on_progress: OnProgress, note: Note
) -> tuple[ValidationResult, int | None]:
    """Evaluate, compiled if the run was; return the maximum samples at once too."""
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
    try:
        result = evaluate(
            trained.model,
            trained.task,
            loader,
            trained.precision,
            trained.device,
            on_progress=lambda progress: on_progress(progress.done, progress.total),
            check_stop=lambda: None,
            in_pieces=batches,
            outputs_stay=not compiler.static_shapes,
            metrics=metrics,
        )
    finally:
        compiler.undo()
    return result, batches.limit


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
