"""The exercises of `mptui learn` by name. Imports no torch until one of them needs it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mptui.errors import ConfigError
from mptui.lab.learn.formats import FormatsLesson, Lesson, parsed
from mptui.registry.names import SIXTEEN_BIT

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

Report = Callable[[Lesson], None]


@dataclass(frozen=True, slots=True)
class LearnChoices:
    """What a person chooses for the exercises."""

    request: "Request"
    """Model, data and device."""
    number: float = 0.1
    precision: str = "fp16"
    rules_of: str = "cuda"
    """Device type whose autocast is shown."""

    @property
    def model(self) -> str:
        """Name of the network."""
        return str(self.request.flags.get("model.name", ("", "unet"))[1])


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise.

    Attributes:
        title: In a few words.
        explanation: What to see, in a sentence or two.
        run: Returns the lesson, and reports it while it grows; takes seconds where it trains.
        uses_model: Whether it has a network.
        moves: Whether the lesson has something to move by the arrow keys.
    """

    title: str
    explanation: str
    run: Callable[[LearnChoices, Report], Lesson]
    uses_model: bool = True
    moves: bool = False


def choices_of(request: "Request", *, number: str, precision: str | None, rules: str) -> LearnChoices:
    """Return the choices of a command line.

    Raises:
        ConfigError: The number is none, or there is no such format or device.
    """
    wanted = "fp16" if precision in {None, "auto"} else str(precision)
    if wanted not in SIXTEEN_BIT:
        raise ConfigError(
            f"--precision {wanted}: autocast has no such format", hint=f"use {' or '.join(SIXTEEN_BIT)}"
        )
    if rules not in {"cuda", "cpu"}:
        raise ConfigError(f"--rules {rules}: unknown", hint="use cuda or cpu")
    return LearnChoices(request, parsed(number), wanted, rules)


def with_model(choices: LearnChoices, name: str) -> LearnChoices:
    """Return the choices with another network."""
    request = choices.request
    return replace(
        choices, request=replace(request, flags={**request.flags, "model.name": ("--model", name)})
    )


def exercise_named(name: str) -> Exercise:
    """Return an exercise.

    Raises:
        ConfigError: There is no such exercise.
    """
    if name not in EXERCISES:
        near = get_close_matches(name, EXERCISES, n=1)
        nearest = f"; nearest: {near[0]}" if near else ""
        raise ConfigError(f"no exercise {name}{nearest}", hint=f"use one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def _formats(choices: LearnChoices, _report: Report) -> Lesson:
    return FormatsLesson(choices.number)


def _scaling(choices: LearnChoices, _report: Report) -> Lesson:
    from mptui.lab.learn.runs import scaling_lesson

    return scaling_lesson(choices.request)


def _overflow(choices: LearnChoices, report: Report) -> Lesson:
    from mptui.lab.learn.runs import overflow_lesson

    return overflow_lesson(choices.request, report)


def _autocast(choices: LearnChoices, _report: Report) -> Lesson:
    from mptui.lab.learn.runs import autocast_lesson

    return autocast_lesson(choices.request, device=choices.rules_of, precision=choices.precision)


def _batch_norm(choices: LearnChoices, report: Report) -> Lesson:
    from mptui.lab.learn.runs import batch_norm_lesson

    return batch_norm_lesson(choices.request, report)


def _training(choices: LearnChoices, report: Report) -> Lesson:
    from mptui.lab.learn.runs import training_lesson

    return training_lesson(choices.request, report)


EXERCISES: dict[str, Exercise] = {
    "formats": Exercise(
        "number formats",
        "Range is in the exponent, digits are in the mantissa: fp16 has few exponents, bf16 few digits.",
        _formats,
        uses_model=False,
        moves=True,
    ),
    "scaling": Exercise(
        "loss scaling",
        "Small gradients vanish in fp16. A loss scale of 2^k moves all of them up by k exponents.",
        _scaling,
        moves=True,
    ),
    "overflow": Exercise(
        "an overflow",
        "Gradients too large for fp16 are infinite. The scaler skips the step and halves the scale.",
        _overflow,
    ),
    "autocast": Exercise(
        "autocast",
        "Autocast computes products in 16 bits, and in fp32 what needs range or digits.",
        _autocast,
    ),
    "batchnorm": Exercise(
        "BatchNorm",
        "A skipped step keeps the weights. Its forward pass has changed BatchNorm's statistics already.",
        _batch_norm,
    ),
    "training": Exercise(
        "training in each format",
        "One seed, the same batches: 16 bits change the loss little. What they save depends on the network.",
        _training,
    ),
}
