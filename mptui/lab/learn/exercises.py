"""The exercises of `mptui learn` by name. Imports no torch until one of them needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mptui.errors import ConfigError
from mptui.lab.learn.formats import LearnChoices, Lesson, Report, formats_lesson, parsed
from mptui.registry.names import SIXTEEN_BIT

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise.

    Attributes:
        title: In a few words.
        explanation: What to see, in a sentence or two.
        uses_model: Whether it has a network.
        charts: The titles of its charts.
    """

    title: str
    explanation: str
    uses_model: bool = True
    charts: tuple[str, ...] = ()


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


def run_exercise(name: str, choices: LearnChoices, report: Report = lambda _: None) -> Lesson:
    """Run an exercise, and report its lesson while it grows; takes seconds where it trains.

    Raises:
        ConfigError: The model does not exist, not for this data, or not for this exercise.
        DataError: The data is missing or unreadable.
    """
    if not EXERCISES[name].uses_model:
        return formats_lesson(choices.number)
    from mptui.lab.learn import runs

    run: Callable[[LearnChoices, Report], Lesson] = getattr(runs, name)  # the function of its name
    return run(choices, report)


EXERCISES: dict[str, Exercise] = {
    "formats": Exercise(
        "number formats",
        "Range is in the exponent, digits are in the mantissa: fp16 has few exponents, bf16 few digits.",
        uses_model=False,
    ),
    "scaling": Exercise(
        "loss scaling",
        "Small gradients vanish in fp16. A loss scale of 2^k moves all of them up by k exponents.",
    ),
    "overflow": Exercise(
        "an overflow",
        "Gradients too large for fp16 are infinite. The scaler skips the step and halves the scale.",
        charts=("loss", "loss scale, log2"),
    ),
    "autocast": Exercise(
        "autocast",
        "Autocast computes products in 16 bits, and in fp32 what needs range or digits.",
    ),
    "batchnorm": Exercise(
        "BatchNorm",
        "A skipped step keeps the weights. Its forward pass has changed BatchNorm's statistics already.",
    ),
    "training": Exercise(
        "training in each format",
        "One seed, the same batches: 16 bits change the loss little. What they save depends on the network.",
        charts=("loss", "loss minus fp32's"),
    ),
}
