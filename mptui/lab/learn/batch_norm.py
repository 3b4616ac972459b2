"""The BatchNorm that a skipped step poisons in a plain loop, and not in mptui.

Before one step all images are multiplied by 1e6, as one broken file could do: in fp16 the first products are
infinite. GradScaler skips the step, so that the weights stay; but the forward pass has changed BatchNorm's
running statistics already, which are NaN from then on, and so is every later validation. mptui's step changes
weights and statistics together, or neither.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mptui import format as fmt
from mptui.engine.reporting.device_buffer import StepRow
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError
from mptui.lab.learn.lesson import Lesson, Line, Tone, plain, quiet
from mptui.lab.learn.small_runs import STEPS, SmallRun
from mptui.runs.planning.plan import Request

AT_STEP = 12
FACTOR = 1e6


@dataclass(slots=True)
class LoopState:
    """What a loop has after its steps so far."""

    steps: int = 0
    skipped: int = 0
    loss: float = math.nan
    finite_weights: bool = True
    norms: int = 0
    poisoned: int = 0
    """BatchNorm layers whose running statistics aren't finite."""
    evaluation_loss: float | None = None
    """Loss in evaluation mode after the last step; None before it."""


@dataclass(slots=True)
class BatchNormLesson(Lesson):
    """Both loops."""

    model: str
    dataset: str
    mptui: LoopState
    plain: LoopState

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out both loops beside each other."""
        rows: list[Line] = [
            plain(f"{self.model} on {self.dataset} in fp16: step {self.mptui.steps} of {STEPS}"),
            quiet(f"at step {AT_STEP} the images are {FACTOR:,.0f} times too large: the products overflow"),
            plain(),
            quiet(f"{'':<30}{'plain loop':>14}{'mptui':>14}"),
        ]
        pairs = (self.plain, self.mptui)
        rows += [
            _row("steps skipped", [f"{state.skipped}" for state in pairs], ["", ""]),
            _row(
                "weights",
                ["finite" if state.finite_weights else "NaN" for state in pairs],
                ["good" if state.finite_weights else "bad" for state in pairs],
            ),
            _row(
                "BatchNorm layers with NaN",
                [f"{state.poisoned} of {state.norms}" for state in pairs],
                ["bad" if state.poisoned else "good" for state in pairs],
            ),
            _row("training loss", [fmt.figure(state.loss) for state in pairs], ["", ""]),
            _row(
                "loss in evaluation",
                [fmt.figure(state.evaluation_loss).replace("nan", "NaN") for state in pairs],
                ["good" if math.isfinite(state.evaluation_loss or 0.0) else "bad" for state in pairs],
            ),
        ]
        if self.plain.poisoned:
            rows += [
                plain(),
                plain("Both loops skip the step. The plain one has changed the running statistics"),
                plain("in the forward pass: training goes on unharmed, each validation is NaN."),
            ]
        return rows

    def document(self) -> dict[str, Any]:
        """Return both loops."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "broken_step": AT_STEP,
            "factor": FACTOR,
            "mptui": asdict(self.mptui),
            "plain": asdict(self.plain),
        }


def _row(label: str, values: Sequence[str], tones: Sequence[Tone]) -> Line:
    return [(f"{label:<30}", "quiet"), *((f"{v:>14}", tone) for v, tone in zip(values, tones, strict=True))]


def batch_norm_lesson(request: Request, report: Callable[[BatchNormLesson], None]) -> BatchNormLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model has no BatchNorm, does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp16"}) as run:
        if not _norms(run.job.model):
            raise ConfigError(
                f"{run.job.config.model.name} has no BatchNorm", hint="choose another, such as --model unet"
            )
        lesson = BatchNormLesson(str(run.job.config.model.name), run.dataset, LoopState(), LoopState())
        batches = run.batches(STEPS)
        last = batches[-1]
        broken = batches[AT_STEP - 1]
        broken.images_BCHW = broken.images_BCHW * FACTOR
        plainly = run.train_plainly(batches, lambda step: None, guarded=True)
        now = 0

        def before(_trainer: Trainer, step: int) -> None:
            nonlocal now
            now = step

        def scaled(_model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0] * FACTOR, *inputs[1:]) if now == AT_STEP and _model.training else inputs

        def after(trainer: Trainer, row: StepRow) -> None:
            step = next(plainly)
            _note(lesson.mptui, trainer.context.model, row.loss, row.refused)
            _note(lesson.plain, run.plain_model, step.loss, step.skipped)
            report(lesson)

        handle = run.job.model.register_forward_pre_hook(scaled)
        trainer = run.train(before, after)
        handle.remove()
        lesson.mptui.evaluation_loss = run.evaluate(trainer.context.model, last)
        lesson.plain.evaluation_loss = run.evaluate(run.plain_model, last)
        report(lesson)
        return lesson


def _norms(model: torch.nn.Module) -> list[torch.nn.modules.batchnorm._NormBase]:
    norms = (m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase))
    return [norm for norm in norms if norm.running_mean is not None]


def _note(state: LoopState, model: torch.nn.Module, loss: float, skipped: bool) -> None:
    norms = _norms(model)
    state.steps += 1
    state.skipped += skipped
    state.loss = loss
    state.finite_weights = all(bool(p.isfinite().all()) for p in model.parameters())
    state.norms = len(norms)
    state.poisoned = sum(not bool(torch.isfinite(norm.running_mean).all()) for norm in norms)  # type: ignore[arg-type] # not None
