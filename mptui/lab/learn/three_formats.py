"""The same training in fp32, fp16 and bf16: from one seed, with the same batches."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from mptui import format as fmt
from mptui.engine.memory.footprint import footprint
from mptui.engine.memory.step_trace import UncountableError
from mptui.engine.reporting.device_buffer import StepRow
from mptui.engine.trainer import Trainer
from mptui.lab.learn.lesson import Lesson, Line, StepCurve, plain, quiet
from mptui.lab.learn.small_runs import SmallRun
from mptui.registry.precisions import PRECISIONS
from mptui.runs.planning.plan import Request

STEPS = 20
_SKIPPED_TIMES = 5
"""First steps, which are slower."""
_MEMORY_DEVICE = "cuda"


@dataclass(slots=True)
class FormatRun:
    """A training in one format.

    Attributes:
        losses: Of each step.
        skipped: Number of skipped steps.
        step_s: Median seconds of a step on this device.
        evaluation_loss: Loss of the last batch in evaluation mode, computed in fp32.
        activations: Bytes of the activations at the peak of a step's memory, counted as on a GPU; None: can't
            be counted.
    """

    losses: list[float] = field(default_factory=list)
    skipped: int = 0
    step_s: float | None = None
    evaluation_loss: float | None = None
    activations: int | None = None


@dataclass(slots=True)
class TrainingLesson(Lesson):
    """The trainings so far."""

    model: str
    dataset: str
    device: str
    runs: dict[str, FormatRun]

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out a line for each format."""
        named = f"{self.model} on {self.dataset}, {STEPS} steps from one seed"
        head = (
            f"{'loss':>16}{'evaluation':>12}{'skipped':>9}{f'a step, {self.device}':>16}{'activations':>14}"
        )
        return [[(named, "")], quiet(head), *(self._row(name, run) for name, run in self.runs.items())]

    def _row(self, name: str, run: FormatRun) -> Line:
        loss = fmt.figure(run.losses[-1] if run.losses else None)
        step = fmt.UNKNOWN if run.step_s is None else f"{1000 * run.step_s:.1f} ms"
        memory = fmt.UNKNOWN if run.activations is None else f"{run.activations / 2**20:.2f} MiB"
        figures = f"{fmt.figure(run.evaluation_loss):>12}{run.skipped:>9}{step:>16}{memory:>14}"
        return plain(f"{name:<6}{loss:>10}{figures}")

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the losses, and how far those in 16 bits are from fp32's."""
        reference = self.runs["fp32"].losses
        apart = [
            StepCurve(name, [loss - own for loss, own in zip(run.losses, reference, strict=False)])
            for name, run in self.runs.items()
            if run.losses and name != "fp32"
        ]
        losses = [StepCurve(name, run.losses) for name, run in self.runs.items() if run.losses]
        return {"loss": losses, "loss minus fp32's": apart}

    def document(self) -> dict[str, Any]:
        """Return all steps in each format."""
        return asdict(self)


def training_lesson(request: Request, report: Callable[[TrainingLesson], None]) -> TrainingLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    lesson = TrainingLesson("", "", "", {name: FormatRun() for name in PRECISIONS})
    for name, found in lesson.runs.items():
        with SmallRun(request, {"precision.mode": name, "training.max_steps": STEPS}) as run:
            lesson.model, lesson.dataset = str(run.job.config.model.name), run.dataset
            lesson.device = run.job.device.type
            _train(run, found, lambda: report(lesson))
            found.activations = _activations(run, name)
    report(lesson)
    return lesson


def _train(run: SmallRun, found: FormatRun, report: Callable[[], None]) -> None:
    begun: list[float] = []

    def before(_trainer: Trainer, _step: int) -> None:
        begun.append(time.perf_counter())

    def after(_trainer: Trainer, row: StepRow) -> None:
        found.losses.append(row.loss)
        found.skipped += row.refused
        report()

    last = run.batches(STEPS)[-1]
    trainer = run.train(before, after)
    found.step_s = median(later - earlier for earlier, later in pairwise(begun[_SKIPPED_TIMES:]))
    found.evaluation_loss = run.evaluate(trainer.context.model, last)


def _activations(run: SmallRun, precision: str) -> int | None:
    try:
        return footprint(
            run.job.config,
            run.task,
            device=_MEMORY_DEVICE,
            precision=precision,
            classes=run.job.num_classes,
        ).activations
    except UncountableError:
        return None
