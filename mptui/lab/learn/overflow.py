"""An overflow made on purpose in fp16, and its repair.

mptui's trainer and a plain loop with a constant loss scale take the same steps. Before one of them the scale
of both is set far too high, so that gradients overflow. The trainer skips steps and halves the scale until
they fit; the plain loop takes the step, and its weights are NaN from then on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mptui import format as fmt
from mptui.engine.reporting.device_buffer import StepRow
from mptui.engine.trainer import Trainer
from mptui.lab.learn.lesson import Lesson, Line, StepCurve, plain, power, quiet
from mptui.lab.learn.small_runs import STEPS, SmallRun
from mptui.runs.planning.plan import Request

AT_STEP = 12
TOO_HIGH = 40
"""Exponent of 2 of the loss scale that is set before `AT_STEP`."""


@dataclass(frozen=True, slots=True)
class ScaledStep:
    """A step of mptui's trainer, and the loss of the plain loop's."""

    loss: float
    loss_scale: float
    skipped: bool
    plain_loss: float


@dataclass(slots=True)
class OverflowLesson(Lesson):
    """The steps so far."""

    model: str
    dataset: str
    steps: list[ScaledStep] = field(default_factory=list)

    @property
    def skipped(self) -> list[int]:
        """Numbers of the skipped steps, from 1 on."""
        return [number for number, step in enumerate(self.steps, 1) if step.skipped]

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out what happened."""
        lines: list[Line] = [
            plain(f"{self.model} on {self.dataset} in fp16: step {len(self.steps)} of {STEPS}"),
            quiet(f"before step {AT_STEP} the loss scale is set to {power(TOO_HIGH)}: gradients overflow"),
        ]
        if len(self.steps) < AT_STEP:
            return lines
        skipped, last = self.skipped, self.steps[-1]
        repaired = not last.skipped
        found = f"{len(skipped)} steps skipped, each halves the scale"
        lines.append([(f"mptui: {found}", "warn" if not repaired else "")])
        if repaired:
            after = f"scale {last.loss_scale:,.0f}, loss {fmt.figure(last.loss)}"
            lines.append([(f"repaired at step {max(skipped, default=0) + 1}: ", "good"), (after, "")])
        if not math.isfinite(last.plain_loss):
            words = "plain loop, constant scale: weights and loss are NaN from then on"
            lines.append([(words, "bad")])
        return lines

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the losses, and the loss scale as an exponent of 2."""
        return {
            "loss": [
                StepCurve("mptui", [step.loss for step in self.steps]),
                StepCurve("plain loop", [step.plain_loss for step in self.steps]),
            ],
            "loss scale, log2": [StepCurve("mptui", [math.log2(step.loss_scale) for step in self.steps])],
        }

    def document(self) -> dict[str, Any]:
        """Return all steps."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "overflow_before_step": AT_STEP,
            "set_loss_scale": 2.0**TOO_HIGH,
            "skipped_steps": self.skipped,
            "steps": [asdict(step) for step in self.steps],
        }


def overflow_lesson(request: Request, report: Callable[[OverflowLesson], None]) -> OverflowLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp16"}) as run:
        lesson = OverflowLesson(str(run.job.config.model.name), run.dataset)
        plainly = run.train_plainly(
            run.batches(STEPS), lambda step: 2.0**TOO_HIGH if step == AT_STEP else None, guarded=False
        )

        def before(trainer: Trainer, step: int) -> None:
            if step == AT_STEP:
                trainer.context.parts.precision.set_scale(2.0**TOO_HIGH)

        def after(_trainer: Trainer, row: StepRow) -> None:
            lesson.steps.append(ScaledStep(row.loss, row.loss_scale, row.refused, next(plainly).loss))
            report(lesson)

        run.train(before, after)
        return lesson
