"""`mptui learn`: the exercises on mixed precision, on a screen, as text or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json, print_next

if TYPE_CHECKING:
    from mptui.lab.learn.formats import LearnChoices

_NAMES = ("formats", "scaling", "overflow", "autocast", "batchnorm", "training")
_WIDTH = 80


def _names(incomplete: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(incomplete)]


class LearnOptions(o.Options):
    """The exercise."""

    exercise: str | None = o.argument(
        "EXERCISE",
        f"{', '.join(_NAMES)}; default: the first on a screen, all as text.",
        default=None,
        show_default=False,
        autocompletion=_names,
    )
    number: str = o.option("0.1", "X", "formats: the number, as 0.1, 1e-8 or 2^-24.")
    rules: str = o.option("cuda", "cuda|cpu", "autocast: the device whose rules are shown.")


def learn(
    options: LearnOptions,
    settings: Annotated[o.SettingOptions, "model task data precision device seed sets trust_code"],
    output: o.Output,
) -> int:
    """Learn number formats, loss scaling and autocast by trying.

    Six short exercises with real numbers: on a terminal a screen, else text. The network is a small U-Net,
    or that of --model; --precision is for the exercise autocast, others choose their own.
    """
    from mptui.lab.learn.exercises import choices_of, exercise_named
    from mptui.tui.terminal.process import has_terminal

    exercise = options.exercise
    if exercise is not None:
        exercise_named(exercise)
    choices = choices_of(
        settings.request(), number=options.number, precision=settings.precision, rules=options.rules
    )
    if not output.as_json and has_terminal():
        return _screen(choices, exercise or _NAMES[0])
    names = _NAMES if exercise is None else (exercise,)
    if output.as_json:
        _print_document(choices, names)
    else:
        _print_text(choices, names)
        print_next("train with mixed precision: mptui run")
    return 0


def _screen(choices: "LearnChoices", first: str) -> int:
    from mptui.tui.terminal.process import guarded

    def show(_part: object) -> int:
        from mptui.tui.app import open_lessons

        return open_lessons(choices, first)

    return guarded(show)


def _print_document(choices: "LearnChoices", names: tuple[str, ...]) -> None:
    from mptui.events import finite_json
    from mptui.lab.learn.exercises import run_exercise

    lessons = {name: run_exercise(name, choices).document for name in names}
    print_json({"exercises": finite_json(lessons)})


def _print_text(choices: "LearnChoices", names: tuple[str, ...]) -> None:
    from mptui import text as fmt
    from mptui.lab.learn.exercises import EXERCISES, run_exercise
    from mptui.lab.learn.formats import text_of

    for name in names:
        exercise = EXERCISES[name]
        typer.echo(f"{exercise.title}\n{exercise.explanation}\n")
        lesson = run_exercise(name, choices)
        for line in lesson.lines(_WIDTH, 0):
            typer.echo(fmt.clean(text_of(line)))
        for title, curves in lesson.curves.items():
            for label, values in curves.items():
                typer.echo(f"{title:<18}{label:<12}{fmt.sparkline(values)}")
        typer.echo("")
