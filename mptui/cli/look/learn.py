"""`mptui learn`: the exercises on mixed precision, on a screen, as text or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json, print_next

if TYPE_CHECKING:
    from mptui.lab.learn.formats import LearnChoices

FORMAT_VERSION = 1
_NAMES = ("formats", "scaling", "overflow", "autocast", "batchnorm", "training")
_WIDTH = 80


def _names(incomplete: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(incomplete)]


_Exercise = Annotated[
    str | None,
    typer.Argument(
        metavar="EXERCISE",
        help=f"{', '.join(_NAMES)}; default: the first on a screen, all as text.",
        show_default=False,
        autocompletion=_names,
    ),
]
_Number = Annotated[
    str, typer.Option("--number", metavar="X", help="formats: the number, as 0.1, 1e-8 or 2^-24.")
]
_Rules = Annotated[
    str, typer.Option("--rules", metavar="cuda|cpu", help="autocast: the device whose rules are shown.")
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("learn")(learn)


def learn(
    ctx: typer.Context,
    exercise: _Exercise = None,
    number: _Number = "0.1",
    rules: _Rules = "cuda",
    model: o.Model = None,
    task: o.Task = None,
    data: o.Data = None,
    precision: o.Precision = None,
    device: o.Device = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    trust_code: o.TrustCode = False,
    as_json: o.Json = False,
) -> int:
    """Learn number formats, loss scaling and autocast by trying.

    Six short exercises with real numbers: on a terminal a screen, else text. The network is a small U-Net,
    or that of --model; --precision is for the exercise autocast, others choose their own.
    """
    from mptui.lab.learn.exercises import choices_of, exercise_named
    from mptui.tui.terminal.process import has_terminal

    if exercise is not None:
        exercise_named(exercise)
    choices = choices_of(o.request_of(ctx), number=number, precision=precision, rules=rules)
    if not as_json and has_terminal():
        return _screen(choices, exercise or _NAMES[0])
    names = _NAMES if exercise is None else (exercise,)
    if as_json:
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
    print_json({"version": FORMAT_VERSION, "exercises": finite_json(lessons)})


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
